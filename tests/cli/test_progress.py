import io

from rich.console import Console

from rankwise.cli.progress import ProgressBar


def terminal():
    return Console(file=io.StringIO(), force_terminal=True, width=80)


def text_of(console):
    return console.file.getvalue()


def test_a_terminal_shows_label_share_and_note():
    console = terminal()
    with ProgressBar(console) as bar:
        bar.update("Probing", done=1.0, total=4.0, note="[red]conv\x1b[2J")
    assert "Probing" in text_of(console)
    assert "25%" in text_of(console)
    assert "[red]conv\\x1b[2J" in text_of(console)


def test_rows_come_and_go():
    console = terminal()
    with ProgressBar(console) as bar:
        bar.update("study", done=1, total=2, note="1/2", seconds_left=3700)
        bar.update("worker 1", note="resnet8", key="first")
        bar.print("above the bar")
        before = len(text_of(console))
        bar.remove("first")
        bar.remove("never added")
        bar.print("again")
    assert "1:01:40" in text_of(console)
    assert "resnet8" in text_of(console)[:before]
    assert "resnet8" not in text_of(console)[before:]


def test_nothing_is_shown_before_the_delay():
    console = terminal()
    with ProgressBar(console, delay=60) as bar:
        bar.update("Probing", done=1.0, total=4.0)
    assert text_of(console) == ""


def test_a_pipe_gets_printed_lines_only():
    console = Console(file=io.StringIO())
    with ProgressBar(console) as bar:
        bar.update("Probing", done=1.0, total=4.0)
        assert not bar.is_visible
        bar.print("[red]a line\x07 " + "x" * 200)
    assert text_of(console) == "[red]a line\\x07 " + "x" * 200 + "\n"
