"""The base of all commands: how their help looks, and what they say to wrong usage."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from typing import Any, TypeAlias, get_args

from typer.core import TyperCommand, TyperGroup

from rankwise._text import suggest_names
from rankwise.cli.output import Split, run_command

# Typer's classes are click's, or since release 0.26 those of its own copy of click.
Context: TypeAlias = Any
Formatter: TypeAlias = Any

# Where a path without a command stands, these are the commands it was probably meant for.
_FOR_PATHS = ("check", "probe")


class Command(TyperCommand):
    """A command whose help names options and arguments as its examples do.

    Options are in groups: `rich_help_panel` of an option is the title of its group.
    """

    def collect_usage_pieces(self, ctx: Context) -> list[str]:
        """Return what follows the name in the usage line, as in "[OPTIONS] FILE..."."""
        arguments = [p for p in self.get_params(ctx) if p.param_type_name == "argument"]
        return ["[OPTIONS]", *map(_format_argument, arguments)]

    def format_options(self, ctx: Context, formatter: Formatter) -> None:
        """Write the arguments and the groups of options."""
        write_options(self, ctx, formatter)

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Parse the arguments; say what could be meant by those that no parameter takes."""
        ctx.allow_extra_args = True
        rest = super().parse_args(ctx, list(args))
        if rest and not ctx.resilient_parsing:
            ctx.fail(f"Unexpected argument {rest[0]!r}.{self.explain_extra(args)}")
        return rest

    def explain_extra(self, args: list[str]) -> str:  # noqa: ARG002
        """Return what to do where `args` has more arguments than the command takes."""
        return ""


class ProbeCommand(Command):
    """A command on one checkpoint, whose `--split` has a value that can be left out."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Give `--split` its default where the next argument is none of its values."""
        return super().parse_args(ctx, complete_split(args))

    def explain_extra(self, args: list[str]) -> str:
        """Name the values of `--split`, or the commands for several checkpoints."""
        place = args.index("--split=stacks") if "--split=stacks" in args else -1
        following = args[place + 1] if 0 <= place < len(args) - 1 else ""
        if following and not Path(following).exists():
            values = get_args(Split)
            return f" --split takes {' or '.join(values)}.{suggest_names(following, values)}"
        return (
            f" {self.name} reads one checkpoint: rankwise diff A B compares two, and rankwise "
            "report A B C writes a page about several."
        )


class DiffCommand(Command):
    """A command on two checkpoints."""

    def explain_extra(self, args: list[str]) -> str:  # noqa: ARG002
        """Name the command for more than two."""
        return " diff compares two: rankwise report A B C writes a page about several."


class TrainCommand(Command):
    """A command without arguments, where a name alone belongs to an option."""

    def explain_extra(self, args: list[str]) -> str:  # noqa: ARG002
        """Return that every name needs its option."""
        return " Every name needs its option, as in --network resnet8 --data digits."


class CommandGroup(TyperGroup):
    """A group of commands; wrong usage exits with 1, since 2 means that a check found problems."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Show the help if no command is given."""
        return super().parse_args(ctx, args or ["--help"])

    def format_options(self, ctx: Context, formatter: Formatter) -> None:
        """Write the options and the commands; no description is cut."""
        write_options(self, ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: Context, formatter: Formatter) -> None:
        """Write every command with its description, on several lines where it is too long."""
        commands = [self.commands[name] for name in self.list_commands(ctx)]
        rows = [
            (command.name or "", command.get_short_help_str(limit=1000).rstrip("."))
            for command in commands
            if not command.hidden
        ]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def resolve_command(self, ctx: Context, args: list[str]) -> Any:  # noqa: ANN401
        """Return the command of a name; name the nearest ones if there is none."""
        name = args[0]
        if not (name in self.commands or name.startswith("-") or ctx.resilient_parsing):
            ctx.fail(f"There is no command {name!r}.{self._explain_unknown(ctx, name)}")
        return super().resolve_command(ctx, args)

    def _explain_unknown(self, ctx: Context, name: str) -> str:
        groups = {k: c for k, c in self.commands.items() if isinstance(c, TyperGroup)}
        inner = [f"{group} {name}" for group in groups if name in groups[group].commands]
        if inner:
            return f" Did you mean {ctx.command_path} {inner[0]}?"
        if all(command in self.commands for command in _FOR_PATHS) and _is_path(name):
            lines = [f"{ctx.command_path} {command} {name}" for command in _FOR_PATHS]
            return f" Did you mean {' or '.join(lines)}?"
        return suggest_names(name, self.commands)

    def main(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401
        """Run a command; exit with its code in standalone mode, else return it."""
        is_standalone = options.pop("standalone_mode", True)

        def run() -> Any:  # noqa: ANN401
            return TyperGroup.main(self, *args, **{**options, "standalone_mode": False})

        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # escape what its encoding lacks
                stream.reconfigure(errors="backslashreplace")
        if not is_standalone:
            return run()
        sys.exit(run_command(run))


def write_options(command: Any, ctx: Context, formatter: Formatter) -> None:  # noqa: ANN401
    """Write the arguments of a command, and its options in groups, each group under its title."""
    for title, rows in list_options(command, ctx).items():
        with formatter.section(title):
            formatter.write_dl(rows)


def list_options(command: Any, ctx: Context) -> dict[str, list[tuple[str, str]]]:  # noqa: ANN401
    """Return the arguments and options of a command by group: names, and what they are for."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for param in command.get_params(ctx):
        record = param.get_help_record(ctx)
        if record is None:
            continue
        is_argument = param.param_type_name == "argument"
        default = "Arguments" if is_argument else "Options"
        title = getattr(param, "rich_help_panel", None) or default
        # An option's values as "error|warning", without the brackets of Typer's releases.
        name = _format_argument(param) if is_argument else record[0].translate(_NO_BRACKETS)
        groups.setdefault(title, []).append((name, _name_ranges(record[1])))
    return groups


_NO_BRACKETS = {ord("<"): None, ord(">"): None}


def _format_argument(param: Any) -> str:  # noqa: ANN401
    """Return an argument as in a usage line: FILE, FILE... for several, [FILE] for an optional."""
    name = param.metavar or param.name.upper()
    if param.nargs == -1:
        name += "..."
    return name if param.required else f"[{name}]"


def _name_ranges(text: str) -> str:
    """Return a description with ranges in words.

    Example:
        >>> _name_ranges("A port.  [default: 1; 0<=x<=9]"), _name_ranges("Jobs.  [x>=1]")
        ('A port.  [default: 1; 0 to 9]', 'Jobs.  [1 or more]')
    """
    text = re.sub(r"(\d+)<=x<=(\d+)(?=[];])", r"\1 to \2", text)
    return re.sub(r"x>=(\d+)(?=[];])", r"\1 or more", text)


def _is_path(text: str) -> bool:
    return "/" in text or "\\" in text or Path(text).suffix != "" or Path(text).exists()


def complete_split(args: list[str]) -> list[str]:
    """Return the arguments with "--split" written out.

    Example:
        >>> complete_split(["--split", "model.pt"]), complete_split(["--split", "heads"])
        (['--split=stacks', 'model.pt'], ['--split', 'heads'])
    """
    end = args.index("--") if "--" in args else len(args)
    following = [*args[1:], ""]
    return [
        "--split=stacks"
        if arg == "--split" and place < end and following[place] not in get_args(Split)
        else arg
        for place, arg in enumerate(args)
    ]
