"""The page, the figures and the timeline of a report."""

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pytest

from mpisgd.cli import main
from mpisgd.report.collect import Named
from mpisgd.report.columns import meanings
from mpisgd.report.figures import draw, encoded
from mpisgd.report.html import page
from mpisgd.report.sections import filled, report
from mpisgd.report.speed import PARTS
from mpisgd.report.summary import summary
from mpisgd.report.targets import Target
from mpisgd.report.trace import SPAN_B, Timeline, steps_of
from mpisgd.store.reader import read
from mpisgd.store.writer import Writer
from mpisgd.values.errors import MissingExtra, UsageError

EVIL = "<script>alert('x')</script> \"&$\\frac{"


def run_of(path, algorithm="dasgd", ranks=2, virtual=False, events=True, **config):
    config = {"algorithm": algorithm, "allreduce": "ring", "scaling": "weak", **config}
    environment = {"command": ["mpisgd", "train", "a b;$(x)"], "host": EVIL}
    with Writer(
        path, kind="train", config=config, environment=environment, ranks=ranks, virtual=virtual
    ) as store:
        for rank in range(ranks):
            store.steps(rank, 1, {
                "start_s": np.arange(4.0), "step_s": np.ones(4), "compute_s": np.full(4, 0.5),
                "update_s": np.full(4, 0.1), "poll_s": np.full(4, 0.1),
                "wait_s": np.array([0.25, 0, 0, 0.25]), "samples": np.full(4, 10),
            })  # fmt: skip
            if events:
                store.event(rank, "flight", "mean", 0.5, 2.5, 1)
        for step in (2, 4):
            store.evaluation(step=step, time_s=step, accuracy=0.2 * step, steps_effective=step)
        store.complete({})
    return Named(str(path), read(path))


def runs_in(folder):
    with Writer(folder / "b.h5", kind="bench", config={}, environment={}, ranks=2) as store:
        for size in (1024, 4096):
            row = {"algorithm": EVIL, "ranks": 2, "bytes": size, "in_place": True}
            store.case(row, [[1e-3, 2e-3]])
        store.complete({})
    return [
        run_of(folder / "a.h5"),
        run_of(folder / "one.h5", ranks=1),
        run_of(folder / "v.h5", virtual=True),
        run_of(folder / "evil.h5", algorithm=EVIL),
        Named("b.h5", read(folder / "b.h5")),
    ]


class Tags(HTMLParser):
    """The tags of a page, and whether they are balanced."""

    VOID = ("meta", "img", "br", "link", "input")

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.images = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag == "img":
            self.images.append(dict(attrs)["src"])
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return report(runs_in(tmp_path_factory.mktemp("runs")), [Target(0.5)], ["x.h5: is <damaged>"])


@pytest.fixture(scope="module")
def text(made):
    return page(made)


def test_the_page_is_whole_and_shows_nothing_unescaped(text):
    tags = Tags(text)
    assert tags.open == []
    assert tags.tags.count("script") == 1
    assert html.escape("<script>alert", quote=False) in text
    assert "is &lt;damaged&gt;" in text
    assert not re.search(r"(src|href)=[\"']?(https?:|//)", text)
    assert "mpisgd train &#39;a b;$(x)&#39;" in text


def test_what_a_file_was_made_with_is_folded_twice(made, text):
    """A file opens to its command; the long texts in it are to be opened one by one."""
    opened = re.findall(r"<summary>([^<]*)</summary>\s*(<\w+>)?", text)
    folded = [summary for summary, follows in opened if follows == "<pre>"]
    assert folded == ["Experiment", "Environment"] * len(made.runs)
    files = [summary for summary, follows in opened if follows == "<p>"]
    assert files == [html.escape(named.name) for named in made.runs]
    assert text.count("<pre>") == 3 * len(made.runs)


def test_browsers_run_the_script_of_the_page_and_no_other(text):
    """Its digest is in the page's policy, which forbids all else."""
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    assert policy.split("; ")[0] == "default-src 'none'"
    assert f"script-src 'sha256-{digest}'" in policy
    assert not re.search(r"fetch|XMLHttp|import|eval|innerHTML", script)


def test_the_page_begins_with_what_the_reader_came_for(tmp_path):
    runs = [run_of(tmp_path / f"{name}.h5", name) for name in ("local", "dasgd")]
    made = report(runs, [Target(0.5), Target(0.75)])
    lines = summary(made)
    assert 3 <= len(lines) <= 5
    assert lines[0] == "2 training runs; they differ by algorithm."
    assert lines[1].startswith("Fastest to accuracy 0.75 (wall seconds): local, 4 s; next dasgd")
    assert lines[2].startswith("Most accurate (wall runs): ")
    text = page(made)
    places = [
        text.index(part)
        for part in (*lines[:1], "<h2>Training runs", "<h2>Figures", "<h2>Time to targets")
    ]
    assert places == sorted(places)


def test_the_summary_of_one_run_says_what_it_came_to(tmp_path):
    lines = summary(report([run_of(tmp_path / "a.h5")]))
    assert lines[0] == "1 training run."
    assert lines[1].startswith("dasgd (wall seconds) came to accuracy 0.8, effective_step_s 1")
    assert lines[-1] == "One file is no comparison."


def test_a_cell_is_sorted_by_its_exact_number_and_shown_as_in_text(text):
    assert re.search(r'<td class="number[^"]*" data-v="0\.8">0\.8000</td>', text)


def test_the_page_explains_its_columns(made, text):
    shown = meanings(filled(s) for s in made.sections if not s.long)
    for key in shown:
        meaning = html.escape(shown[key]).replace("&#x27;", "&#39;")
        assert f'title="{meaning}"' in text
        assert f"<dt>{key}</dt><dd>{meaning}</dd>" in text
    assert "results/README.md" not in text
    assert "mpisgd report --columns" in text


def test_the_images_of_the_page_are_the_figures_and_cannot_run(made, text):
    images = [base64.b64decode(source.partition(",")[2]).decode() for source in Tags(text).images]
    assert len(images) == len(draw(made)) == 10
    assert not any("<script" in image for image in images)
    assert images[0] == encoded(draw(made)["accuracy-time-wall"], "svg").decode()


def test_wall_and_virtual_seconds_never_share_a_figure(made):
    figures = draw(made)
    assert sorted(figures) == [
        "accuracy-steps-virtual", "accuracy-steps-wall", "accuracy-time-virtual",
        "accuracy-time-wall", "bandwidth-wall", "breakdown-virtual", "breakdown-wall",
        "latency-wall", "speedup-wall", "step-parts-wall",
    ]  # fmt: skip
    for name, figure in figures.items():
        axes = figure.axes[0]
        words = set(re.findall("[a-z]+", axes.get_xlabel() + axes.get_title()))
        assert {"virtual", "wall"} & words <= {name.rsplit("-", 1)[1]}
    lines = figures["accuracy-time-virtual"].axes[0].get_lines()
    assert [line.get_label() for line in lines] == ["dasgd"]


def test_the_accuracy_figure_shows_the_numbers_of_the_runs(tmp_path):
    figure = draw(report([run_of(tmp_path / "a.h5")]))["accuracy-time-wall"]
    (line,) = figure.axes[0].get_lines()
    np.testing.assert_allclose(line.get_xdata(), [2, 4])
    np.testing.assert_allclose(line.get_ydata(), [0.4, 0.8])


def test_figures_come_in_three_forms(tmp_path):
    figure = draw(report([run_of(tmp_path / "a.h5")]))["breakdown-wall"]
    for form, start in {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}.items():
        assert encoded(figure, form).startswith(start)
    words = ["report", str(tmp_path / "a.h5"), "--figures", str(tmp_path / "f")]
    assert main([*words, "--picture", "png"]) == 0
    names = sorted(path.name for path in (tmp_path / "f").iterdir())
    assert names == ["accuracy-steps-wall.png", "accuracy-time-wall.png", "breakdown-wall.png"]


def test_a_missing_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"matplotlib.*pip install -e '\.\[plot\]'"):
        draw(report([run_of(tmp_path / "a.h5")]))
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
    with pytest.raises(MissingExtra, match=r"--html.*Jinja2.*pip install -e '\.\[plot\]'"):
        page(report([run_of(tmp_path / "b.h5")]))


def timeline(runs, *more):
    return "".join(Timeline(runs, *more))


def test_the_timeline_has_every_lane_where_its_seconds_are(tmp_path):
    trace = json.loads(timeline([run_of(tmp_path / "a.h5"), run_of(tmp_path / "v.h5")]))
    events = trace["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    names = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {"compute", "update", "poll", "wait", "communication in flight"}
    assert {event["pid"] for event in spans} == {0, 1, 2, 3}
    waits = [e for e in spans if e["name"] == "wait" and e["pid"] == 0]
    assert [(e["ts"], e["dur"], e["args"]["step"]) for e in waits] == [
        (0.7e6, 0.25e6, 1), (3.7e6, 0.25e6, 4),
    ]  # fmt: skip
    (pending,) = [e for e in spans if e["name"] == "mean" and e["pid"] == 1]
    assert (pending["ts"], pending["dur"]) == (0.5e6, 2e6)
    computing = [e for e in spans if e["name"] == "compute" and e["pid"] == 1]
    under = [e for e in computing if e["ts"] < 2.5e6 and e["ts"] + e["dur"] > 0.5e6]
    assert len(under) == 2  # overlap is seen: two steps compute while the mean is in flight


def test_a_lane_that_was_recorded_is_not_drawn_from_totals_as_well(tmp_path):
    with Writer(tmp_path / "a.h5", kind="train", config={}, environment={}, ranks=1) as store:
        store.steps(0, 1, {"start_s": [0.0], "compute_s": [1.0], "wait_s": [1.0]})
        store.event(0, "compute", "gradient", 0.25, 0.75, 1)
        store.complete({})
    trace = json.loads(timeline([Named("a", read(tmp_path / "a.h5"))]))
    spans = [(e["name"], e["args"].get("placed")) for e in trace["traceEvents"] if e["ph"] == "X"]
    assert sorted(spans, key=str) == [("gradient", None), ("wait", "total of the step")]


def test_every_share_of_the_schema_has_a_lane(tmp_path):
    with Writer(tmp_path / "a.h5", kind="train", config={}, environment={}, ranks=1) as store:
        store.steps(0, 1, {"start_s": [0.0]} | {f"{part}_s": [0.1] for part in PARTS})
        store.complete({})
    events = json.loads(timeline([Named("a", read(tmp_path / "a.h5"))]))["traceEvents"]
    lanes = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    drawn = {e["name"]: lanes[e["tid"]] for e in events if e["ph"] == "X"}
    assert drawn == {part: part for part in PARTS}


def steps_drawn(text):
    return sorted({e["args"]["step"] for e in json.loads(text)["traceEvents"] if e["ph"] == "X"})


def test_a_trace_has_the_steps_asked_for_and_no_more_than_viewers_take(tmp_path):
    with Writer(tmp_path / "a.h5", kind="train", config={}, environment={}, ranks=2) as store:
        for rank in range(2):
            times = np.arange(100.0)
            store.steps(rank, 1, {"start_s": times, "compute_s": times + 1, "wait_s": times + 1})
        store.complete({})
    runs = [Named("a", read(tmp_path / "a.h5"))]
    whole = Timeline(runs)
    assert whole.left_out == ""
    assert steps_drawn("".join(whole)) == list(range(1, 101))
    assert steps_drawn(timeline(runs, steps_of("20:30"))) == list(range(20, 31))
    assert steps_drawn(timeline(runs, steps_of("98:"))) == [98, 99, 100]
    cut = Timeline(runs, None, 41 * SPAN_B)  # four spans a step
    text = "".join(cut)
    assert steps_drawn(text) == list(range(1, 11))
    told = "ends with step 10: 360 of 400 spans, up to step 100, are left out; --steps A:B"
    assert told in cut.left_out
    later = Timeline(runs, (50, 90), 41 * SPAN_B)
    assert steps_drawn("".join(later)) == list(range(50, 60))
    assert max(map(len, text.splitlines())) < SPAN_B + 20
    one = Timeline(runs, None, 1)
    assert steps_drawn("".join(one)) == [1]  # a step is never cut


@pytest.mark.parametrize("text", ["", "5", "3:2", "0:4", "a:b", "-1:3", ":0", "1:2:3"])
def test_steps_that_are_none(text):
    with pytest.raises(UsageError, match="FIRST:LAST"):
        steps_of(text)


def test_options_of_a_trace_need_one(tmp_path, capsys):
    path = str(tmp_path / "a.h5")
    run_of(path)
    target = str(tmp_path / "t.json")
    for words in (["--steps", "1:2"], ["--trace-limit", "1M"], ["--trace", target, "--steps", "x"],
                  ["--trace", target, "--trace-limit", "x"]):  # fmt: skip
        assert main(["report", path, *words]) == 2
    assert not (tmp_path / "t.json").exists()
    assert main(["report", path, "--trace", target, "--steps", "1:1", "--trace-limit", "1K"]) == 0
    assert steps_drawn((tmp_path / "t.json").read_text()) == [1]
    capsys.readouterr()


def test_glyphs_that_the_font_lacks_are_quiet(tmp_path, recwarn):
    name = str(tmp_path / "\u8a13\u7df4.h5")
    figures = draw(report([Named(name, run_of(tmp_path / "a.h5").run)]))
    for form in ("svg", "png"):
        assert all(encoded(figure, form) for figure in figures.values())
    assert [str(w.message) for w in recwarn if "Glyph" in str(w.message)] == []


def test_files_are_written_once_and_replaced_only_when_asked(tmp_path, capsys):
    run_of(tmp_path / "a.h5")
    words = ["report", str(tmp_path / "a.h5"), "--html", str(tmp_path / "r.html"),
             "--trace", str(tmp_path / "t.json")]  # fmt: skip
    assert main(words) == 0
    before = (tmp_path / "r.html").read_bytes()
    assert main(words) == 2
    assert "exists; pass --overwrite" in capsys.readouterr().err
    assert main([*words, "--overwrite"]) == 0
    assert (tmp_path / "r.html").read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.h5", "r.html", "t.json"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--html", "{}/a.h5"], "--html"), (["--trace", "{}/a.h5"], "--trace"),
        (["--html", "{}/alias.html"], "--html"), (["--figures", "{}/kept"], "--figures"),
        (["--html", "{}/r", "--trace", "{}/r"], "--trace .* is --html too"),
        (["--figures", "{}/text"], "--figures .* is a file; name a folder"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("by", ["a.h5", ""])
def test_what_is_read_is_not_written_over(tmp_path, capsys, by, words, told):
    run_of(tmp_path / "a.h5")
    (tmp_path / "alias.html").symlink_to("a.h5")
    (tmp_path / "text").write_text("mine")
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "accuracy.svg").hardlink_to(tmp_path / "a.h5")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    words = [word.format(tmp_path) for word in words]
    assert main(["report", str(tmp_path / by), *words, "--overwrite"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.search(told, err)
    assert len(err.splitlines()) == 1
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


BROWSERS = ("chromium", "chromium-browser", "google-chrome")
MEASURE = """<!DOCTYPE html><body>
<iframe style="width:400px;height:900px;border:0" srcdoc="{0}"></iframe>
<iframe style="width:1280px;height:900px;border:0" srcdoc="{0}"></iframe>
<pre id=out></pre><script>
const sorted = d => {{ const head = [...d.querySelectorAll('th')].find(h => h.textContent ==
  'ranks' && !h.classList.contains('more')); head.firstChild.click();
  const k = head.cellIndex, rows = [...head.closest('table').tBodies[0].rows];
  return rows.map(r => Number(r.cells[k].dataset.v)); }};
const kept = d => {{ const input = d.querySelector('input[type=search]'), table =
  d.querySelector('table'); input.value = 'virtual'; input.dispatchEvent(new Event('input'));
  return [...table.tBodies[0].rows].filter(r => !r.hidden).length; }};
const seen = d => name => {{ const cell = [...d.querySelectorAll('th')].find(h =>
  h.textContent === name).getBoundingClientRect();
  return cell.right > d.documentElement.clientWidth ? Infinity : cell.bottom; }};
const measured = f => {{ const d = f.contentDocument, images = [...d.images]; return {{
  wide: d.documentElement.scrollWidth, broken: images.filter(i => !i.naturalWidth).length,
  narrowest: Math.min(...images.map(i => i.clientWidth)), cells: d.querySelectorAll('td').length,
  needed: Math.max(...['accuracy', 'effective_step_s'].map(seen(d))), ranks: sorted(d),
  kept: kept(d)
}} }};
onload = () => document.getElementById('out').textContent =
  JSON.stringify([...document.querySelectorAll('iframe')].map(measured));
</script>"""


def test_a_real_browser_shows_the_page_at_phone_and_desk_width(tmp_path, text):
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed")
    (tmp_path / "m.html").write_text(MEASURE.format(html.escape(text)))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile"]
    command = [browser, *flags, "--virtual-time-budget=5000", "--window-size=1800,1000",
               "--dump-dom", f"file://{tmp_path}/m.html"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    phone, desk = json.loads(re.search(r'<pre id="out">(.*?)</pre>', done.stdout)[1])
    for measured, width in ((phone, 400), (desk, 1280)):
        assert measured["wide"] <= width  # no part of the page sticks out
        assert measured["broken"] == 0
        assert measured["narrowest"] >= 320
        assert measured["cells"] > 20
        assert measured["ranks"] == sorted(measured["ranks"])  # by a click
        assert measured["kept"] == 1  # of the rows of runs, by a word
    assert desk["needed"] < 900  # accuracy and seconds are on the first screen
