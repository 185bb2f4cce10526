"""The command line. Heavy imports happen inside the commands, so that `waystation --help` is quick."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from waystation.agents.base import BaseAgent
    from waystation.config import Settings

app = typer.Typer(name="waystation", help="A server for AI agents whose runs are durable records.", no_args_is_help=True)

TargetArgument = Annotated[str | None, typer.Argument(help="Your agents: a file, or package.module:attribute. Without it, the demo agent.")]


@contextmanager
def told_in_a_line() -> Iterator[None]:
    """What the operator can mend is told in a line, not in a traceback."""
    from pydantic import ValidationError

    from waystation.errors import ConfigError, StoreUnavailableError

    try:
        yield
    except ValidationError as exc:
        problems = [f"WAYSTATION_{'.'.join(map(str, e['loc'])).upper()}: {e['msg']}" for e in exc.errors(include_url=False)]
        _fail("; ".join(problems), 2)
    except ConfigError as exc:
        _fail(str(exc), 2)
    except StoreUnavailableError as exc:
        _fail(f"The database of WAYSTATION_DATABASE_URL can't be used: {exc.__cause__}", 1)


def _fail(message: str, code: int) -> None:
    typer.secho(message, fg="red", err=True)
    raise typer.Exit(code)


async def prepare(settings: "Settings") -> bool:
    """Bring the tables up to date, or check them where the server must not change them. Whether anything was to do."""
    from waystation.db import schema
    from waystation.db.engine import open_database

    database = open_database(settings.database_url, direct_url=settings.database_direct_url, synchronous=settings.sqlite_synchronous)
    try:
        await database.check()
        if settings.auto_migrate:
            return await schema.upgrade(database)
        await schema.check(database)
        return False
    finally:
        await database.close()


@app.command()
def serve(
    target: TargetArgument = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; default WAYSTATION_HOST or 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; default WAYSTATION_PORT or 7777.")] = None,
    no_worker: Annotated[bool, typer.Option("--no-worker", help="Execute nothing: leave that to `waystation worker`.")] = False,
) -> None:
    """Serve agents over HTTP."""
    from waystation.config import Settings
    from waystation.main import Waystation
    from waystation.serving import run_server

    with told_in_a_line():
        agents = _agents(target)
        server = Waystation(agents=agents, settings=Settings(worker=False) if no_worker else Settings())
        asyncio.run(prepare(server.settings))
    address = host or server.settings.host
    number = server.settings.port if port is None else port
    typer.echo(f"Waystation serves {', '.join(agent.id for agent in agents)} on http://{address}:{number}  (docs at /docs)")
    run_server(server.app, server.settings, host=host, port=port)


@app.command()
def worker(target: TargetArgument = None) -> None:
    """Execute runs of agents, without HTTP."""
    from waystation.cli.worker import run_worker
    from waystation.config import Settings

    with told_in_a_line():
        run_worker(Settings(worker=True), _agents(target))


def _agents(target: str | None) -> "list[BaseAgent]":
    if target is None:
        from waystation.agents.native.demo_agent import demo_agent

        return [demo_agent()]
    from waystation.cli.load import load_agents

    return load_agents(target)


@app.command()
def migrate() -> None:
    """Bring the tables of WAYSTATION_DATABASE_URL up to date."""
    from waystation.config import Settings

    with told_in_a_line():
        done = asyncio.run(prepare(Settings(auto_migrate=True)))
    typer.echo("The tables are up to date now." if done else "The tables were up to date already.")


@app.command()
def openapi() -> None:
    """Print the OpenAPI document."""
    import json

    from waystation.main import Waystation

    typer.echo(json.dumps(Waystation(agents=[]).app.openapi(), indent=2, sort_keys=True))


if __name__ == "__main__":
    app()
