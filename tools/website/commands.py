"""The reference of the command line: every command, as `--help` describes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from rankwise.cli import app
from rankwise.cli.command import list_options

Command = TyperCommand | TyperGroup


def list_commands(command: Command, name: str) -> Iterator[tuple[str, Command]]:
    """Yield a command and those below it, each with the words that call it."""
    if not command.hidden:
        yield name, command
        for word, child in getattr(command, "commands", {}).items():
            yield from list_commands(child, f"{name} {word}")


def make_command_page() -> str:
    """Return the page of all commands in Markdown."""
    lines = ["# Command line", "", "What `rankwise COMMAND --help` says of every command.", ""]
    root: Any = get_command(app)
    for name, command in list_commands(root, "rankwise"):
        lines += _describe(name, command)
    return "\n".join(lines)


def _describe(name: str, command: Command) -> Iterator[str]:
    context = command.make_context(name, [], resilient_parsing=True)
    yield from (f"## {name}" if name.count(" ") < 2 else f"### {name}", "")
    yield from ("```text", command.get_usage(context).removeprefix("Usage: "), "```", "")
    yield from (_escape(command.help or ""), "")
    for title, records in list_options(command, context).items():
        yield from (f"| {title} | |", "|---|---|")
        for usage, text in records:
            yield f"| <code>{_escape(usage)}</code> | {_escape(text)} |"
        yield ""
    if command.epilog:
        yield from ("```text", command.epilog.replace("\b", "").strip("\n"), "```", "")


def _escape(text: str) -> str:
    """Return plain text such that Markdown shows it unchanged."""
    text = " ".join(text.replace("\b", "").split())
    for sign in "\\`*_<[|":
        text = text.replace(sign, f"&#{ord(sign)};")
    return text
