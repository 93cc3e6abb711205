import contextlib
import http.client
import json
import re
import threading
import time
import zlib
from urllib.parse import quote

import msgspec
import pytest

pytest.importorskip("altair")
pytest.importorskip("jinja2")
pytest.importorskip("vl_convert")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

import uvicorn

from rankwise.lab import Config, RunError
from rankwise.lab.records import LayerColumns, LayersRecord, Session
from rankwise.lab.run_folder import RunFolder
from rankwise.reports.watch import pages
from rankwise.reports.watch.server import WatchServer, make_app
from tests.lab.runs import record_of
from tests.reports.test_packing import expand

TOKEN = "a token of some length"  # noqa: S105
EVERYWHERE = "0.0.0.0"  # noqa: S104
NAMES = ["stem.conv", "fc"]
HOSTILE = [
    "<img src=x onerror=document.title='hacked'>",
    '"><svg onload=document.title="hacked">',
    "..%2f..%2fetc",
    "quote'n\"quote",
    "with space & ?run=x#y",
    "ünïcödé – 学習",
    "two\nlines",
    "{{7*7}}",
]


def record(epoch, accuracy=0.9, quality=0.4):
    seconds = {"data": 0.1, "step": 0.8, "probe": 0.0, "eval": 0.1, "save": 0.0, "trained": epoch}
    known = {"epoch": epoch, "train": {"loss": 1.0}, "test": {"loss": 0.5, "accuracy": accuracy}}
    return record_of(**known, quality=quality, rates=[0.1, 0.2], seconds=seconds)


def layers(epoch):
    values = [0.1 + 0.01 * epoch, 0.3]
    return LayerColumns(NAMES, *[values] * 5)


class Trainer:
    """Writes the records of a run as a training does, into a folder of any name."""

    def __init__(self, root, name, epochs=0, **options):
        self.folder = RunFolder(Config(out=str(root), **{"epochs": 10, **options}))
        self.folder.path = root / name
        self.folder.path.mkdir()
        self.epoch = 0
        self.start()
        self.train(epochs)

    def start(self):
        self.folder.start(Session(started="2026-01-01T00:00:00+00:00"))

    def train(self, epochs=1, **figures):
        for _ in range(epochs):
            self.epoch += 1
            self.folder.add(record(self.epoch, **figures), layers(self.epoch))

    def go_on_from(self, epoch):
        with pytest.warns(UserWarning, match="run again"):
            self.folder.cut_after(epoch)
        self.epoch = epoch
        self.start()


@pytest.fixture
def trainer(tmp_path):
    return lambda name="a", epochs=0, **options: Trainer(tmp_path, name, epochs, **options)


class Client:
    """Asks a server on this machine, path by path, as it is written."""

    def __init__(self, port):
        self.port = port

    def get(self, path, method="GET", **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        known = {"Host": f"127.0.0.1:{self.port}"}
        connection.request(method, path, headers={**known, **headers})
        with contextlib.closing(connection), connection.getresponse() as answer:
            answer.body = answer.read()
        return answer

    def text(self, path, **headers):
        return self.get(path, **headers).body.decode()

    def json(self, path):
        answer = self.get(path)
        assert answer.status == 200, answer.body
        return json.loads(answer.body)

    def updates(self, path):
        """The address that a page asks for what is new."""
        found = re.search(r'id="content">(.*?)</script>', self.text(path), re.DOTALL)
        return json.loads(found[1])["updates"]


@pytest.fixture(scope="module")
def serve():
    """Serves applications by uvicorn, each in a thread of its own."""
    running = []

    def start(app):
        config = uvicorn.Config(app, port=0, log_level="critical", lifespan="off")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run)
        thread.start()
        running.append((server, thread))
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.005)
        return Client(server.servers[0].sockets[0].getsockname()[1])

    yield start
    for server, thread in running:
        server.should_exit = True
        thread.join()


@pytest.fixture
def client(serve, tmp_path):
    return serve(make_app(tmp_path))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a run that no test changes, for servers that many tests ask."""
    root = tmp_path_factory.mktemp("runs")
    Trainer(root, "a", 1)
    Trainer(root, "a b", 1)
    return root


@pytest.fixture(scope="module")
def site(serve, folder):
    return serve(make_app(folder))


@pytest.fixture(scope="module")
def guarded(serve, folder):
    return serve(make_app(folder, host=EVERYWHERE, token=TOKEN))


def test_the_list_names_every_run_and_leads_to_its_page(client, trainer):
    trainer("first", 2)
    trainer("second", 1)
    text = client.text("/")
    assert '<a href="/run/first">first</a>' in text
    assert "2 of 10" in text
    assert client.get("/run/second").status == 200
    assert '<a href="/">' in client.text("/run/second")


def test_the_list_tells_what_changed_and_nothing_else(client, trainer):
    one = trainer("one", 1)
    address = client.updates("/")
    assert client.json(address) == {"updates": address}
    one.train()
    news = client.json(address)
    assert news["updates"] != address
    assert "2 of 10" in news["tables"]["runs"]
    assert news["facts"] == [["running", "1", ""]]
    assert news["summary"] == ["1 run, 1 in progress."]


def test_the_first_run_makes_an_empty_list_load_anew(client, trainer):
    address = client.updates("/")
    assert client.json(address) == {"updates": address}
    trainer()
    assert client.json(address) == {"reload": True}


def test_a_run_page_is_told_the_epochs_that_it_lacks(client, trainer):
    one = trainer("one", 2)
    address = client.updates("/run/one")
    assert client.json(address) == {"updates": address}
    one.train(2)
    news = client.json(address)
    rows = [row for rows in news["datasets"].values() for row in rows]
    assert {row["epoch"] for row in rows} == {3, 4}
    assert client.json(news["updates"]) == {"updates": news["updates"]}


def test_a_page_of_a_run_that_ended_asks_no_more(client, trainer):
    one = trainer("one", 1)
    address = client.updates("/run/one")
    one.folder.end("finished")
    assert client.json(address)["updates"] == ""
    assert client.updates("/run/one") == ""


def test_a_run_that_dropped_epochs_makes_its_page_load_anew(client, trainer):
    one = trainer("one", 4)
    address = client.updates("/run/one")
    one.go_on_from(2)
    assert client.json(address) == {"reload": True}
    one.train(5)
    assert client.json(address) == {"reload": True}  # by now it is further than the page was
    assert client.json("/update/run/one?seen=junk") == {"reload": True}
    assert client.json("/update/run/one") == {"reload": True}


def test_an_epoch_whose_layers_alone_are_written_is_not_sent_twice(client, trainer):
    one = trainer("one", 1)
    line = msgspec.json.encode(LayersRecord(2, layers(2))).decode()
    with (one.folder.path / "layers.jsonl").open("a") as file:
        file.write(line + "\n")
    text = client.text("/run/one")
    content = json.loads(re.search(r'id="content">(.*?)</script>', text, re.DOTALL)[1])
    for rows in content["datasets"].values():
        if "epoch" in rows["fields"]:
            assert set(expand(rows["columns"][rows["fields"].index("epoch")])) <= {1}


def test_runs_are_compared_in_the_same_charts(client, trainer):
    first, second = trainer("first", 1), trainer("second", 2, seed=1)
    path = "/compare?run=first&run=second"
    assert "A rmsgd" in client.text(path)
    address = client.updates(path)
    assert client.json(address) == {"updates": address}
    first.train()
    second.train(2)
    news = client.json(address)
    (rows,) = news["datasets"].values()
    assert [(row["name"], row["epoch"]) for row in rows] == [
        ("first", 2),
        ("second", 3),
        ("second", 4),
    ]
    assert "4 of 10" in news["tables"]["compared"]
    first.folder.end("finished")
    again = client.json(news["updates"])
    assert again == {"updates": news["updates"]}
    second.folder.end("diverged")
    assert client.json(news["updates"])["updates"] == ""


def test_compared_runs_that_bring_a_chart_or_drop_epochs_load_the_page_anew(client, trainer):
    first, second = trainer("first"), trainer("second", seed=1)
    first.train(2, quality=None)
    address = client.updates("/compare?run=first&run=second")
    second.train(quality=None)
    news = client.json(address)
    assert [row["name"] for row in news["datasets"]["compared epochs"]] == ["second"]
    first.train()
    assert client.json(news["updates"]) == {"reload": True}  # now there is a Q to draw
    address = client.updates("/compare?run=first&run=second")
    first.go_on_from(1)
    assert client.json(address) == {"reload": True}
    assert client.json("/update/compare?run=first&run=second") == {"reload": True}


def test_runs_to_compare_are_counted(client, trainer):
    trainer("one", 1)
    assert client.get("/compare").status == 400
    assert "Tick 1 to 12 runs" in client.text("/compare")
    many = "&".join(f"run=r{number}" for number in range(13))
    assert client.get(f"/compare?{many}").status == 400
    assert client.get(f"/update/compare?{many}").status == 400
    assert client.get("/update/compare").status == 400
    assert client.get("/compare?run=one&run=one").status == 200
    assert client.get("/compare?run=one&run=other").status == 404


@pytest.mark.parametrize(
    "path",
    [
        "/run/no-such-run",
        "/run/..",
        "/run/%2e%2e",
        "/run/..%2f..%2fetc%2fpasswd",
        "/run/../../../etc/passwd",
        "/run/",
        "/update/run/x",
        "/etc/passwd",
        "//evil.example/",
        "/page.py",
        "/run/%00",
        "/run/%ff",
        "/run/a/config.json",
    ],
)
def test_what_is_not_there_is_a_clean_page(site, path):
    answer = site.get(path)
    assert answer.status == 404
    assert b"<h1>Not found</h1>" in answer.body
    assert b"Traceback" not in answer.body


def test_hostile_names_are_addresses_and_text(client, trainer):
    trainers = {
        name: trainer(name, 1, seed=seed, network=name, optimizer=name)
        for seed, name in enumerate(HOSTILE)
    }
    listed = client.text("/")
    # As browsers send a form.
    forms = "&".join(f"run={quote(name.replace(chr(10), chr(13) + chr(10)))}" for name in HOSTILE)
    for text in (listed, client.text(f"/compare?{forms}")):
        assert "<img" not in text
        assert "<svg" not in text
        assert all(f'href="/run/{quote(name, safe="")}"' in text for name in HOSTILE)
    for name, one in trainers.items():
        text = client.text(f"/run/{quote(name)}")
        assert "<img" not in text
        assert "<svg" not in text
        address = client.updates(f"/run/{quote(name)}")
        one.train()
        assert client.json(address)["updates"] != address


def test_a_run_that_cannot_be_read_has_a_page_that_says_why(client, trainer):
    one = trainer("one", 1)
    (one.folder.path / "config.json").write_text('{"schema": 2, "options": {"network": 3}}')
    assert "unreadable" in client.text("/")
    answer = client.get("/run/one")
    assert answer.status == 500
    assert b"network should be str" in answer.body
    assert b"Traceback" not in answer.body


def test_half_a_character_in_a_record_breaks_no_page(client, trainer):
    one = trainer("one", 1)
    config = json.loads((one.folder.path / "config.json").read_text())
    config["options"]["network"] = "a\ud800b"
    (one.folder.path / "config.json").write_text(json.dumps(config))
    assert client.get("/").status == 200
    assert client.get("/run/one").status == 200
    assert client.get("/compare?run=one").status == 200


def test_broken_records_are_told_on_the_page(client, trainer):
    one = trainer("one", 2)
    with (one.folder.path / "epochs.jsonl").open("a") as file:
        file.write("{broken\n")
    assert "a broken record is left out" in client.text("/run/one")


@pytest.mark.parametrize(
    "case",
    [("/", "make_list_table", 500), ("/run/one", "make_run_page", 200)],
    ids=["at once", "streamed"],
)
def test_a_failure_is_told_without_a_trace(client, trainer, monkeypatch, case):
    def fail(*_, **__):
        raise ZeroDivisionError("secret detail")

    path, part, status = case
    trainer("one", 1)
    monkeypatch.setattr(pages, part, fail)
    answer = client.get(path)
    assert answer.status == status  # a run's page has begun by then
    assert b"Something went wrong" in answer.body
    assert answer.body.rstrip().endswith(b"</html>")
    assert b"secret detail" not in answer.body
    assert b"Traceback" not in answer.body
    assert answer.headers["Content-Security-Policy"]


def test_a_run_that_breaks_while_its_page_is_made_is_told_on_it(client, trainer, monkeypatch):
    def vanish(*_, **__):
        raise RunError("It is gone.")

    trainer("one", 1)
    monkeypatch.setattr(pages, "make_run_page", vanish)
    assert "<p>It is gone.</p>" in client.text("/run/one")


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_the_head_of_a_run_page_comes_before_the_rest_is_made(
    client, trainer, monkeypatch, encoding
):
    def wait(run, **options):
        assert seen.wait(30)
        return page(run, **options)

    page, seen = pages.make_run_page, threading.Event()
    trainer("one", 1)
    whole = client.text("/run/one")
    monkeypatch.setattr(pages, "make_run_page", wait)
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=30)
    connection.request("GET", "/run/one", headers={"Accept-Encoding": encoding})
    with contextlib.closing(connection), connection.getresponse() as answer:
        unpacked = zlib.decompressobj(31) if encoding == "gzip" else None
        read = unpacked.decompress if unpacked else bytes
        head = read(answer.read1())
        assert head.endswith(b"<main>")
        assert b"<h1>one</h1>" in head
        seen.set()
        assert head + read(answer.read()) == whole.encode()
    assert whole.count("<main>") == 1


@pytest.mark.parametrize("path", ["/", "/run/a", "/run/none", "/compare?run=a", "/update"])
def test_every_answer_has_safe_headers(site, path):
    headers = site.get(path).headers
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("name", ["page.css", "page.js", "vega.js"])
def test_assets_are_sent_once_and_packed(site, name):
    answer = site.get(f"/{name}", **{"Accept-Encoding": "gzip"})
    assert answer.headers["Content-Encoding"] == "gzip"
    assert answer.headers["Cache-Control"] == "no-cache"
    tag = answer.headers["ETag"]
    again = site.get(f"/{name}", **{"If-None-Match": tag})
    assert (again.status, again.body) == (304, b"")
    assert site.get(f"/{name}", **{"If-None-Match": 'W/"other"'}).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_the_server_can_only_be_read(site, method):
    assert site.get("/", method).status == 405


def test_head_answers_without_a_body(site):
    answer = site.get("/", "HEAD")
    assert (answer.status, answer.body) == (200, b"")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:9000", 200),
        ("127.0.0.1:8765", 200),
        ("[::1]:8765", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example:8765", 421),
        ("localhost.evil.example", 421),
        ("[::1].evil.example", 421),
        ("", 421),
    ],
)
def test_only_this_machines_names_are_answered(site, host, status):
    for path in ("/", "/vega.js", "/update"):
        assert site.get(path, Host=host).status == status


def test_the_name_that_is_bound_is_answered(serve, tmp_path):
    client = serve(make_app(tmp_path, host="box.lan"))
    assert client.get("/", Host="box.lan:8765").status == 200
    assert client.get("/", Host="other.lan").status == 421
    everywhere = serve(make_app(tmp_path, host=EVERYWHERE, token=TOKEN))
    assert everywhere.get("/", Host="any.lan").status == 401


@pytest.mark.parametrize(
    "path", ["/", "/run/a", "/run/none", "/compare?run=a", "/update", "/page.js", "/vega.js", "/x"]
)
def test_without_the_token_nothing_is_shown(guarded, path):
    wrong = [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": TOKEN},
        {"Cookie": "rankwise"},
    ]
    for headers in wrong:
        answer = guarded.get(path, **headers)
        assert answer.status == 401
        assert b"A token is required" in answer.body
        assert TOKEN.encode() not in answer.body
    mark = "&" if "?" in path else "?"
    assert guarded.get(f"{path}{mark}token=wrong").status == 401
    assert guarded.get(f"{path}{mark}token=").status == 401


def test_a_bearer_is_let_in(guarded):
    assert guarded.get("/run/a", Authorization=f"Bearer {TOKEN}").status == 200


def test_the_token_in_an_address_becomes_a_cookie(guarded):
    answer = guarded.get(f"/compare?run=a%20b&token={quote(TOKEN)}")
    assert answer.headers["Refresh"] == "0; url=/compare?run=a+b"
    assert b'href="/compare?run=a+b"' in answer.body
    assert TOKEN.encode() not in answer.body
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    kept = {"Cookie": cookie.partition(";")[0]}
    assert guarded.get("/compare?run=a+b", **kept).status == 200
    assert guarded.get("/vega.js", **kept).status == 200
    answer = guarded.get(f"/run/a%20b?token={quote(TOKEN)}")
    assert answer.headers["Refresh"] == "0; url=/run/a%20b"


@pytest.mark.parametrize("path", ["//evil.example", "///evil.example/x", "/%5Cevil.example"])
def test_the_way_in_leads_nowhere_else(guarded, path):
    answer = guarded.get(f"{path}?token={quote(TOKEN)}")
    assert re.match(r"0; url=/[^/\\]", answer.headers["Refresh"])


def test_beyond_this_machine_a_token_is_made_up(tmp_path):
    watcher = WatchServer(tmp_path, host=EVERYWHERE, port=0, token=None)
    watcher.socket.close()
    assert watcher.is_open
    assert len(watcher.token) >= 32
    assert watcher.address == f"http://127.0.0.1:{watcher.port}/?token={watcher.token}"


def test_pages_ask_for_one_run_at_a_time(client, trainer, monkeypatch):
    """Many at once would hold as many runs in memory."""
    inside, most = [], []

    def slow(run, **options):
        inside.append(run)
        most.append(len(inside))
        time.sleep(0.02)
        inside.remove(run)
        return page(run, **options)

    page = pages.make_run_page
    trainer("a", 1)
    monkeypatch.setattr(pages, "make_run_page", slow)
    threads = [threading.Thread(target=client.get, args=("/run/a",)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1, 1]


def address(client, path):
    return f"http://127.0.0.1:{client.port}{path}"


def test_in_a_browser_the_list_follows_a_run(client, trainer, visit):
    one = trainer("one", 1)
    page = visit(address=address(client, "/"))
    page.tab.get_by_role("checkbox").check()
    one.train(accuracy=0.5)
    page.tab.get_by_text("2 of 10").wait_for()
    assert "50.00 %" in page.text("tbody")
    assert page.tab.get_by_role("checkbox").is_checked()
    assert page.tab.evaluate("document.activeElement.value") == "one"  # it keeps the focus
    trainer("two", seed=1)
    page.tab.get_by_role("link", name="two").wait_for()
    page.tab.get_by_role("button", name="Compare the selected runs").click()
    page.ready()
    assert page.tab.url.endswith("/compare?run=one")


def test_in_a_browser_a_run_page_and_a_comparison_gain_epochs(client, trainer, visit):
    one = trainer("one", 2)
    run = visit(address=address(client, "/run/one"))
    compared = visit(address=address(client, "/compare?run=one"))
    one.train(accuracy=0.3125)
    compared.tab.get_by_text("3 of 10").wait_for()
    assert "31.25 %" in compared.text(".summary")
    run.tab.get_by_text(re.compile("31[.]2")).first.wait_for()
    one.folder.end("finished")
    run.tab.get_by_text("Finished: no more updates").wait_for()


def test_in_a_browser_the_token_lets_in_who_comes_from_another_site(guarded, visit):
    page = visit("<!doctype html><body data-ready><a>runs</a>")  # a file: another site
    place = address(guarded, f"/?token={quote(TOKEN)}")
    page.tab.evaluate("place => { document.querySelector('a').href = place; }", place)
    page.tab.get_by_role("link").click()
    page.tab.get_by_role("link", name="a", exact=True).wait_for()
    assert page.tab.url == address(guarded, "/")


def test_in_a_browser_hostile_names_stay_text(client, trainer, visit):
    for seed, name in enumerate(HOSTILE):
        trainer(name, 2, seed=seed, network=name, data=name, optimizer=name)
    page = visit(address=address(client, "/"))
    assert sorted(page.tab.locator("tbody a").all_text_contents()) == sorted(HOSTILE)
    for box in page.tab.get_by_role("checkbox").all():
        box.check()
    page.tab.get_by_role("button", name="Compare the selected runs").click()
    page.ready()
    assert sorted(page.tab.locator("tbody a").all_text_contents()) == sorted(HOSTILE)
    page.tab.get_by_role("link", name=HOSTILE[0], exact=True).click()
    page.ready()
    assert page.text("h1") == HOSTILE[0]
    assert page.tab.title() == HOSTILE[0]
    assert page.tab.locator("img, svg[onload]").count() == 0
