"""Claude Code behind the server's API.

Needs `pip install 'waystation[claude]'` and ANTHROPIC_API_KEY in the server's environment. Then:

    waystation serve examples/claude_agent.py
    curl -N http://127.0.0.1:7777/agents/claude/runs -F message='What is in this folder?' -F session_id=first

Each session has a private working folder; give `cwd` to have them all work in one that exists. The tools named here are all that
the model gets; what `allowed_tools` does not name and Claude Code would ask about is refused.
"""

from waystation.agents.claude import ClaudeAgent

agents = [
    ClaudeAgent(
        id="claude",
        description="Reads and writes files in its own folder.",
        system_prompt="You are a careful engineer. Be brief.",
        tools=["Read", "Write", "Edit", "Glob", "Grep"],
        allowed_tools=["Read", "Write", "Edit", "Glob", "Grep"],
        max_turns=20,
        max_budget_usd=1.0,
    )
]
