"""ClaudeAgent with the real `claude` binary, against a scripted Messages API on loopback."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.anthropic_server import AnthropicServer, Call, Fail, Say, Usage
from support.claude_emitter import MemoryEmitter
from support.claude_turns import KEY, agent_for, failure_of, processes, run_turn, turn_of, with_bash
from waystation.agents.claude import ClaudeAgent
from waystation.errors import ConfigError

pytestmark = [pytest.mark.timeout(90), pytest.mark.usefixtures("clean_claude")]


async def test_text_streams_in_pieces_and_is_whole(api: AnthropicServer, emit: MemoryEmitter, tmp_path: Path) -> None:
    answer = "One answer, told in several pieces, and told only once."
    api.then(Say(thinking="Let me think about it.", text=answer, delay_s=0.01))

    result = await run_turn(agent_for(api), turn_of("hello"), emit)

    assert emit.text == answer
    assert len([event for event in emit.contents if event.content]) > 3
    assert "".join(event.reasoning_content or "" for event in emit.contents) == "Let me think about it."
    assert emit.external_session_id
    assert result.content is None
    assert processes(tmp_path) == []


@pytest.mark.parametrize("prompt", ["-x", "@/etc/passwd what is this?", "/compact", "--help", "two\nlines  \t‘ü’ 🙂"])
async def test_prompts_arrive_as_written(api: AnthropicServer, emit: MemoryEmitter, prompt: str) -> None:
    await run_turn(agent_for(api), turn_of(prompt), emit)

    assert api.requests[0].texts("user") == [prompt]
    assert "root:" not in str(api.requests[0].body)
    assert emit.text == "done"


async def test_tool_call_is_told_with_its_output(api: AnthropicServer, emit: MemoryEmitter) -> None:
    api.then(Call(tool="Bash", args={"command": "echo out-$((40+2))"}, id="toolu_ok", text="Let me see. "), Say(text="It is 42."))

    await run_turn(with_bash(api), turn_of("run it"), emit)

    assert [event.tool["tool_call_id"] for event in emit.started] == ["toolu_ok"]
    assert emit.started[0].tool["tool_name"] == "Bash"
    assert emit.started[0].tool["tool_args"] == {"command": "echo out-$((40+2))"}
    assert [event.tool["tool_call_id"] for event in emit.completed] == ["toolu_ok"]
    assert emit.completed[0].tool["result"] == "out-42"
    assert emit.completed[0].tool["tool_call_error"] is False
    assert emit.events.index(emit.started[0]) < emit.events.index(emit.completed[0])
    assert emit.text == "Let me see. It is 42."


async def test_failing_command_is_a_tool_error(api: AnthropicServer, emit: MemoryEmitter) -> None:
    api.then(Call(tool="Bash", args={"command": "echo no >&2; exit 3"}, id="toolu_bad"), Say(text="It failed."))

    await run_turn(with_bash(api), turn_of("run it"), emit)

    assert emit.completed[0].tool["tool_call_error"] is True
    assert "no" in emit.completed[0].tool["result"]
    assert emit.text == "It failed."


async def test_call_that_nobody_may_allow_is_refused(api: AnthropicServer, emit: MemoryEmitter, tmp_path: Path) -> None:
    target = tmp_path / "written"
    api.then(Call(tool="Bash", args={"command": f"touch {target}"}, id="toolu_no"), Say(text="I may not."))

    await run_turn(agent_for(api, tools=["Bash"]), turn_of("write"), emit)

    assert emit.completed[0].tool["tool_call_error"] is True
    assert not target.exists()


async def test_usage_and_cost_arrive(api: AnthropicServer, emit: MemoryEmitter) -> None:
    api.then(Say(text="hi", usage=Usage(input=100, output=50, cache_read=2000, cache_write=300)))

    await run_turn(agent_for(api), turn_of("hello"), emit)

    usage = emit.metrics.models[0]
    assert (usage.id, usage.provider) == ("claude-sonnet-4-6", "Anthropic")
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (100, 50, 150)
    assert (usage.cache_read_tokens, usage.cache_write_tokens) == (2000, 300)
    assert usage.cost is not None
    assert usage.cost > 0


async def test_second_turn_resumes_and_counts_only_itself(api: AnthropicServer, tmp_path: Path) -> None:
    first, second = MemoryEmitter(), MemoryEmitter()
    api.then(Say(text="My name is Ada."), Say(text="As I said: Ada."))
    await run_turn(agent_for(api, system_prompt="Be brief."), turn_of("who are you?"), first)

    again = turn_of("say it again", external_session_id=first.external_session_id)
    await run_turn(agent_for(api, system_prompt="Be polite."), again, second)

    assert second.external_session_id == first.external_session_id
    assert api.requests[1].texts("user") == ["who are you?", "say it again"]
    assert api.requests[1].texts("assistant") == ["My name is Ada."]
    assert "Be polite." in str(api.requests[1].body["system"])
    assert second.text == "As I said: Ada."
    assert second.warnings == []
    assert second.metrics == first.metrics


async def test_lost_transcript_begins_anew_with_a_warning(api: AnthropicServer, emit: MemoryEmitter) -> None:
    lost = "5e0c2a52-5a0e-4b57-9a64-0f6f4b0f8d11"

    await run_turn(agent_for(api), turn_of("hello", external_session_id=lost), emit)

    assert emit.warnings[0]["type"] == "session_fallback"
    assert emit.warnings[0]["reason"] == "transcript_missing"
    assert emit.external_session_id not in (None, lost)
    assert emit.text == "done"


def break_transcript(tmp_path: Path, begun: MemoryEmitter) -> None:
    transcript = next(tmp_path.rglob(f"{begun.external_session_id}.jsonl"))
    transcript.write_text("no JSON at all\n")


async def test_broken_transcript_begins_anew_with_a_warning(api: AnthropicServer, emit: MemoryEmitter, tmp_path: Path) -> None:
    begun = MemoryEmitter()
    await run_turn(agent_for(api), turn_of("hello"), begun)
    break_transcript(tmp_path, begun)

    await run_turn(agent_for(api), turn_of("hi", external_session_id=begun.external_session_id), emit)

    assert emit.warnings[0]["reason"] == "resume_refused"
    assert emit.external_session_id != begun.external_session_id
    assert emit.text == "done"


async def test_stream_that_breaks_off_is_told_once(api: AnthropicServer, emit: MemoryEmitter) -> None:
    api.then(Say(text="A text that ends too early.", delay_s=0.1, cut_after=2), Say(text="The whole text."))

    await run_turn(agent_for(api, {"CLAUDE_CODE_MAX_RETRIES": "2"}), turn_of("hello"), emit)

    assert "stream_restarted" in [warning["type"] for warning in emit.warnings]
    assert emit.text == "The whole text."


@pytest.mark.parametrize(
    ("status", "error_type", "retryable", "words"),
    [
        (400, "invalid_request", False, "no luck"),
        (401, "authentication_failed", False, "no luck"),
        (403, "permission_denied", False, "no luck"),
        (404, "model_not_found", False, "claude-sonnet-4-6"),
        (429, "rate_limited", True, "no luck"),
        (500, "server_error", True, "no luck"),
        (529, "overloaded", True, "529"),
    ],
)
async def test_api_failures(api: AnthropicServer, emit: MemoryEmitter, status: int, error_type: str, retryable: bool, words: str) -> None:
    api.then(*[Fail(status=status, message="no luck")] * 20)

    error = await failure_of(agent_for(api), emit)

    assert (error.error_type, error.retryable) == (error_type, retryable)
    assert words in error.message
    assert emit.text == ""


async def test_retried_request_is_told(api: AnthropicServer, emit: MemoryEmitter) -> None:
    api.then(Fail(status=529))

    await run_turn(agent_for(api, {"CLAUDE_CODE_MAX_RETRIES": "2"}), turn_of("hi"), emit)

    assert emit.warnings[0]["type"] == "api_retry"
    assert emit.warnings[0]["status"] == 529
    assert emit.text == "done"


async def test_unreachable_api_is_retryable(api: AnthropicServer, emit: MemoryEmitter) -> None:
    error = await failure_of(agent_for(api, {"ANTHROPIC_BASE_URL": "http://127.0.0.1:9"}), emit)

    assert (error.error_type, error.retryable) == ("api_unreachable", True)


async def test_max_turns_ends_the_turn(api: AnthropicServer, emit: MemoryEmitter) -> None:
    api.then(Call(tool="Bash", args={"command": "true"}, id="toolu_1"), Call(tool="Bash", args={"command": "true"}, id="toolu_2"))
    agent = agent_for(api, {"IS_SANDBOX": "1"}, tools=["Bash"], permission_mode="bypassPermissions", max_turns=1)

    error = await failure_of(agent, emit)

    assert (error.error_type, error.retryable) == ("max_turns_reached", False)
    assert emit.metrics.totals().output_tokens > 0


async def test_missing_binary(api: AnthropicServer, emit: MemoryEmitter, tmp_path: Path) -> None:
    error = await failure_of(agent_for(api, cli_path=tmp_path / "no-claude"), emit)

    assert (error.error_type, error.retryable) == ("sdk_not_found", False)


async def test_missing_working_folder(api: AnthropicServer, emit: MemoryEmitter, tmp_path: Path) -> None:
    error = await failure_of(agent_for(api, cwd=tmp_path / "nowhere"), emit)

    assert (error.error_type, error.retryable) == ("cwd_not_found", False)


async def test_start_failure_tells_what_the_binary_said(api: AnthropicServer, emit: MemoryEmitter, tmp_path: Path) -> None:
    broken = tmp_path / "claude"
    broken.write_text('#!/bin/sh\necho "bad key $ANTHROPIC_API_KEY, giving up" >&2\nexit 3\n')
    broken.chmod(0o755)

    error = await failure_of(agent_for(api, cli_path=broken), emit)

    assert (error.error_type, error.retryable) == ("sdk_start_failed", False)
    assert "giving up" in error.message
    assert KEY not in error.message


async def test_secrets_are_neither_in_argv_nor_in_the_tools_environment(
    api: AnthropicServer, emit: MemoryEmitter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAYSTATION_DATABASE_URL", "postgresql://hidden-1")
    monkeypatch.setenv("OPENAI_API_KEY", "hidden-2")
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "hidden-3")
    monkeypatch.setenv("CLAUDE_CODE_USE_BEDROCK", "1")
    monkeypatch.setenv("ANTHROPIC_MODEL", "hidden-4")
    api.then(Call(tool="Bash", args={"command": "env; tr '\\0' ' ' </proc/$PPID/cmdline"}, id="toolu_env"))

    await run_turn(with_bash(api), turn_of("look"), emit)

    output = emit.completed[0].tool["result"]
    command = output[output.rindex("--output-format") :]
    assert "hidden-" not in output
    assert KEY not in command
    assert api.url not in command
    assert api.requests[0].headers["x-api-key"] == KEY
    assert api.requests[0].body["model"] == "claude-sonnet-4-6"


async def test_settings_and_hooks_of_the_folder_are_not_loaded(api: AnthropicServer, emit: MemoryEmitter, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    (folder / ".claude").mkdir(parents=True)
    (folder / "CLAUDE.md").write_text("the project's memory")
    hook = f'{{"hooks": [{{"type": "command", "command": "touch {tmp_path}/ran"}}]}}'
    (folder / ".claude" / "settings.json").write_text(f'{{"hooks": {{"SessionStart": [{hook}]}}}}')

    await run_turn(agent_for(api, cwd=folder), turn_of("hello"), emit)

    assert not (tmp_path / "ran").exists()
    assert "the project's memory" not in str(api.requests[0].body)


@pytest.mark.parametrize(
    "options",
    [
        {"model": ""},
        {"permission_mode": "always"},
        {"max_turns": 0},
        {"max_budget_usd": -1.0},
        {"tools": "Bash"},
        {"env": {"HOME": "/root"}},
        {"env": {"A": 1}},
        {"system_prompt": "x" * 100_001},
        {"id": "not an id"},
    ],
)
def test_wrong_options_are_refused_at_construction(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ClaudeAgent(**{"id": "claude"} | options)


def test_missing_package_says_what_to_install() -> None:
    code = "import sys; sys.modules['claude_agent_sdk'] = None; import waystation.agents; import waystation.agents.claude"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert "ConfigError" in done.stderr
    assert "pip install 'waystation[claude]'" in done.stderr
