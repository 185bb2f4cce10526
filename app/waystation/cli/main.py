"""The command line. Heavy imports happen inside the commands, so that `waystation --help` is quick."""

import asyncio
from typing import Annotated

import typer

app = typer.Typer(name="waystation", help="A server for AI agents whose runs are durable records.", no_args_is_help=True)

TargetArgument = Annotated[
    str | None, typer.Argument(help="Your agents: a file, or package.module:attribute. Without it the demo agent is served.")
]


@app.command()
def serve(
    target: TargetArgument = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; default WAYSTATION_HOST or 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; default WAYSTATION_PORT or 7777.")] = None,
) -> None:
    """Serve agents over HTTP."""
    from waystation.agents.base import BaseAgent
    from waystation.cli.load import load_agents
    from waystation.errors import ConfigError
    from waystation.main import Waystation
    from waystation.serving import run_server

    try:
        if target is None:
            from waystation.agents.native.demo_agent import demo_agent

            agents: list[BaseAgent] = [demo_agent()]
        else:
            agents = load_agents(target)
        server = Waystation(agents=agents)
    except ConfigError as exc:
        typer.secho(str(exc), fg="red", err=True)
        raise typer.Exit(2) from exc
    address = host or server.settings.host
    number = server.settings.port if port is None else port
    typer.echo(f"Waystation serves {', '.join(agent.id for agent in agents)} on http://{address}:{number}  (docs at /docs)")
    run_server(server.app, server.settings, host=host, port=port)


@app.command()
def migrate() -> None:
    """Bring the tables of WAYSTATION_DATABASE_URL up to date."""
    from waystation.config import Settings
    from waystation.db import schema
    from waystation.db.engine import open_database

    async def upgrade() -> bool:
        settings = Settings()
        database = open_database(settings.database_url, synchronous=settings.sqlite_synchronous)
        try:
            return await schema.upgrade(database)
        finally:
            await database.close()

    done = asyncio.run(upgrade())
    typer.echo("The tables are up to date now." if done else "The tables were up to date already.")


@app.command()
def openapi() -> None:
    """Print the OpenAPI document."""
    import json

    from waystation.main import Waystation

    typer.echo(json.dumps(Waystation(agents=[]).app.openapi(), indent=2, sort_keys=True))


if __name__ == "__main__":
    app()
