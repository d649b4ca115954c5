# SPDX-License-Identifier: Apache-2.0

import base64
import hashlib
import html
import json
import math
import re
import shutil
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest
from helpers.report_utils import (
    Page,
    make_row,
    make_sample,
    make_turn,
    training_row,
    write_audit,
    write_episodes,
    write_log,
)

from trl_nlac.records.folder import SETTINGS, WARNINGS
from trl_nlac.report import RunReport, write_report


CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
HOSTILE = (
    "<script>document.title='hijacked'</script></script><!-- <img src=x onerror=\"document.title='hijacked'\"> -->"
    "<svg> &lt;b&gt; ]]> \"'`{{ 7 * 7 }} \u2028\u2029 \x00\x01\x1b[31m\x7f \u202eright to left\u202c שלום مرحبا "
    "\U0001f600 C:\\new"
)


def write_run(run: Path, text: str) -> Path:
    evaluation = {
        **{"episode/success_rate": 0.5, "episode/return": 0.5, "critic/brier": 0.2},
        **{"episode/success_rate_low": 0.3, "episode/success_rate_high": 0.7, "oracle/verdict_yes_rate": 0.8},
    }
    metrics = {"critic/loss": 1.0, "policy/loss": 0.5, f"{text}/format_rate": 0.9, "time/rollout": 2.0}
    rows = [training_row(step, **metrics) for step in (1, 2)]
    for step in (1, 2):
        of_step = {**evaluation, "environment/steps": 10 * step}
        rows += [{"step": step, **{f"eval_{text}_{name}": value for name, value in of_step.items()}}]
    write_log(run, rows)
    texts = dict.fromkeys(("text", "action", "next_observation", "critique"), text)
    judged = make_turn(**texts, verdict=True, verdict_score=1.0)
    row = {"prompt": text, "task": text, text: text}
    columns = {text: pa.string()}
    write_episodes(run, [make_row(0, turns=[judged], **row)], kind="eval", **columns)
    failed = {"success": False, "failure": f"step: {text}", "return": 0.0}
    write_episodes(run, [make_row(0, turns=[make_turn(**texts)], **row), make_row(1, **row, **failed)], **columns)
    said = "observation action next_observation critique target attempt attempt_critique refined_action".split()
    write_audit(run, [make_sample(number, task=text, **dict.fromkeys(said, text)) for number in (0, 5)])
    (run / "README.md").write_text(f"---\nbase_model: {json.dumps(text)}\n---\n", encoding="utf-8")
    settings = {"model": text, "chosen": {text: text}, "others": {text: [text]}}
    (run / SETTINGS).write_text(json.dumps(settings))
    (run / WARNINGS).write_text(json.dumps({"step": 1, "message": text}))
    return run


class TestPage:
    def test_a_folder_without_a_run(self, tmp_path):
        (tmp_path / "config.json").write_text("{}")
        with pytest.raises(ValueError, match=r"`run` is .*training_log.jsonl.*Pass the `output_dir`"):
            write_report(tmp_path)
        assert not (tmp_path / "report.html").exists()

    def test_only_a_log(self, tmp_path):
        end = {"step": 1, "train_runtime": 3725.0, "train_loss": 0.4}
        write_log(tmp_path, [training_row(1, **{"critic/loss": 1.0}), end])
        (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
        path = write_report(str(tmp_path))
        assert path == tmp_path / "report.html"
        page = Page(path.read_text(encoding="utf-8"))
        (chart,) = page.data["charts"]["training"]
        assert page.data["episodes"] == [] and chart["title"] == "Losses"
        assert "trained in 1 h 2 min" in page.text and "LlamaForCausalLM" in page.text
        settings = {"model": "/models/support_model", "chosen": {}, "others": {}}
        (tmp_path / SETTINGS).write_text(json.dumps(settings))
        named = Page(write_report(tmp_path).read_text(encoding="utf-8")).text
        assert "support_model" in named and "LlamaForCausalLM" not in named and "/models" not in named
        assert "No episodes were recorded" in page.text and all(tag.get("id") != "browser" for _, tag in page.tags)
        assert "data-charts" not in {name for _, attrs in page.tags for name in attrs if attrs[name] == "learning"}

    def test_only_audited_samples(self, tmp_path):
        write_audit(tmp_path / "run", [make_sample()])
        path = write_report(tmp_path / "run", tmp_path / "pages" / "one.html")
        page = Page(path.read_text(encoding="utf-8"))
        assert path == tmp_path / "pages" / "one.html" and len(page.data["episodes"]) == 1
        assert "not finished" not in page.text and "Environment steps" not in page.text

    def test_the_head(self, tmp_path):
        rows = [
            {"step": step, "eval_environment/steps": 100 * step, "eval_episode/success_rate": rate, **ends}
            for step, rate in ((0, 0.125), (5, 0.875), (10, 0.75))
            for ends in [{"eval_episode/success_rate_low": 0.5, "eval_episode/success_rate_high": 0.9}]
        ]
        tokens = {"tokens/generated": 1200, "tokens/trained": 45000, "tokens/generated/act": 200}
        write_log(tmp_path, [*rows, training_row(12, **tokens)], end='{"step": 13, "lo')
        page = Page(write_report(tmp_path).read_text(encoding="utf-8"))
        text = " ".join(page.text.split())
        assert "Success in evaluation 0.75 0.50 to 0.90 first 0.12, best 0.88" in text
        assert "Environment steps 1,000 Optimizer steps 12" in text
        assert "Tokens of training: 1,200 generated, 45,000 trained." in text
        assert "not finished" in text and "1 line of training_log.jsonl could not be read" in text

    def test_reliability_as_a_table(self, tmp_path):
        for step, success in ((10, False), (20, True)):
            turns = [make_turn(verdict=True, verdict_score=math.log(3)) for _ in range(4)]
            write_episodes(tmp_path, [make_row(turns=turns, success=success)], step, kind="eval")
        text = " ".join(Page(write_report(tmp_path).read_text(encoding="utf-8")).text.split())
        text = text.replace("40.", "4 0.").replace("–first", "– first")
        assert "newest, step 20 4 0.062 – first, step 10 4 0.562 –" in text

    def test_hostile_text_stays_text(self, tmp_path):
        harmless = Page(write_report(write_run(tmp_path / "run", "words")).read_text(encoding="utf-8"))
        run = write_run(tmp_path / "<b>&\"'", HOSTILE)
        page = Page(write_report(run).read_text(encoding="utf-8"))
        assert page.names() == harmless.names()
        assert not set(page.raw[1]) & set("<>&\u2028\u2029\x00\u202e")
        first = page.data["episodes"][0]
        assert first["prompt"] == first["task"] == first["extra"][HOSTILE] == first["turns"][0]["critique"] == HOSTILE
        assert page.raw[0] == harmless.raw[0] and page.raw[2] == harmless.raw[2]
        assert HOSTILE.split("\x00")[0] in page.text and run.name in page.text

    def test_nothing_is_loaded(self, tmp_path):
        write_log(tmp_path, [training_row(1)])
        page = Page(write_report(tmp_path).read_text(encoding="utf-8"))
        assert not {"link", "iframe", "img", "object", "base"} & set(page.names())
        assert all(not value.startswith(("http", "//")) for _, attrs in page.tags for value in attrs.values() if value)
        assert not [attrs for _, attrs in page.tags if "src" in attrs]
        (policy,) = [attrs["content"] for _, attrs in page.tags if "http-equiv" in attrs]
        hashes = [base64.b64encode(hashlib.sha256(page.raw[i].encode()).digest()).decode() for i in (0, 2)]
        allowed = f"style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'"
        assert policy.startswith(f"default-src 'none'; {allowed}")


def open_page(path: Path, fragment: str = "", *options: str) -> tuple[Page, str]:
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", *options]
    command += [f"--user-data-dir={path.parent / 'profile'}", "--enable-logging=stderr", "--virtual-time-budget=20000"]
    # A sandboxed frame shares its page's process, as virtual time does not wait for messages between processes.
    command += ["--disable-features=IsolateSandboxedIframes"]
    finished = subprocess.run(
        [*command, "--dump-dom", f"{path.as_uri()}{fragment}"], capture_output=True, encoding="utf-8", timeout=300
    )
    console = [line for line in finished.stderr.splitlines() if "CONSOLE" in line]
    return Page(finished.stdout), "\n".join(console)


DRIVER = """\
<!doctype html><body style="margin: 0">
<iframe style="width: {width}px; height: 800px; border: 0" src="{name}"></iframe><script>
const view = document.querySelector("iframe");
addEventListener("load", async () => {{
  const wait = () => new Promise((go) => setTimeout(go, 400));
  const {{ contentDocument: page, contentWindow: seen }} = view;
  const all = (selector) => [...page.querySelectorAll(selector)];
  const text = (selector) => page.querySelector(selector)?.innerText;
  await wait();
  document.body.dataset.found = JSON.stringify(await (async () => {{ {script} }})());
}});
</script></body>
"""


def drive(path: Path, script: str, width: int = 1200, fragment: str = "") -> dict:
    driver = path.with_name("driver.html")
    driver.write_text(DRIVER.format(width=width, name=f"{path.name}{fragment}", script=script), encoding="utf-8")
    page, console = open_page(driver, "", "--allow-file-access-from-files")
    assert not console, console
    return json.loads(dict(page.tags)["body"]["data-found"])


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
class TestBrowser:
    def test_hostile_text_stays_text(self, tmp_path):
        path = write_report(write_run(tmp_path / "run", HOSTILE))
        page, console = open_page(path, "#episode=0")
        assert not console, console
        assert page.names().count("script") == 2 and "img" not in page.names() and page.text.count("hijacked") >= 8
        shown = HOSTILE.replace("\x00\x01\x1b", "\u2400\u2401\u241b").replace("\x7f", "\u2421")
        assert page.text.count(shown) >= 6
        assert page.classes("row") == 4 and page.classes("line") >= 4

    def test_what_is_not_escaped_does_not_run(self, tmp_path):
        write_log(tmp_path, [training_row(step, **{"critic/loss": 1.0}) for step in (1, 2)])
        path = write_report(tmp_path)
        harm = "<script>document.title = 'hijacked'</script><b onclick='1' id=x></b>"
        harm += "<img src='http://127.0.0.1:9/x'></main>"
        path.write_text(path.read_text(encoding="utf-8").replace("</main>", harm), encoding="utf-8")
        page, console = open_page(path)
        assert "hijacked" not in page.text and page.names().count("svg") == 1
        assert console.count("Content Security Policy") >= 2

    def test_fragment_and_controls(self, tmp_path):
        judged = make_turn(verdict=False, verdict_score=-2.0, critique="Optimality: No, the lantern is needed.")
        rows = [make_row(i, step=10 + i, turns=[judged], **{"return": i / 8}) for i in range(2)]
        write_episodes(tmp_path, rows, kind="eval")
        rows = [make_row(i, step=i, success=i % 2 == 0, terminated=i < 4, truncated=i >= 4) for i in range(6)]
        write_episodes(tmp_path, rows)
        write_audit(tmp_path, [make_sample(2, turn=1)])
        found = drive(
            write_report(tmp_path),
            """
            const steps = () => all(".row .facts").map((node) => Number(node.innerText.match(/step (\\d+)/)[1]));
            const visit = async (hash) => {
              seen.location.hash = hash;
              await wait();
              return [text(".count"), ...steps()];
            };
            const found = {};
            for (const hash of ["", "split=train", "outcome=cut", "wrong=1", "audited=1", "q=LANTERN", "q=x%3Cy",
                "sort=best", "sort=oldest&split=eval", "page=99", "episode=length", "sort=toString"])
              found[hash] = await visit(hash);
            await visit("episode=2&wrong=1");
            found.detail = text(".detail");
            found.row = all(".row[aria-current=true]").length;
            await visit("");
            all(".row")[0].click();
            await wait();
            found.clicked = seen.location.hash;
            page.querySelector("[name=wrong]").click();
            await wait();
            found.checked = [seen.location.hash, text(".count")];
            const search = page.querySelector("[name=q]");
            search.value = "better idea";
            search.dispatchEvent(new Event("input"));
            await wait();
            found.searched = [seen.location.hash, text(".count")];
            return found;
            """,
        )
        assert found[""] == ["8 episodes", 11, 10, 5, 4, 3, 2, 1, 0]
        assert found["split=train"] == ["6 of 8 episodes", 5, 4, 3, 2, 1, 0]
        assert found["outcome=cut"] == ["1 of 8 episodes", 5]
        assert found["wrong=1"] == ["3 of 8 episodes", 11, 10, 2]
        assert found["audited=1"] == ["1 of 8 episodes", 2]
        assert found["q=LANTERN"] == ["2 of 8 episodes", 11, 10]
        assert found["q=x%3Cy"] == ["0 of 8 episodes"]
        assert found["sort=best"][1:] == [0, 1, 2, 3, 4, 5, 11, 10]
        assert found["sort=oldest&split=eval"][1:] == [10, 11]
        assert found["page=99"] == found["episode=length"] == found["sort=toString"] == found[""]
        told = ["Success", "training", "I try 1.", "act 1", "seen 1", "weights of step 4", "a door closes"]
        told += ["knock before", "better idea", "loss 0.25", "priority 0.75", "Yes, probability 0.82", "wrong"]
        assert not [words for words in told if words not in found["detail"]]
        assert found["row"] == 1 and "policy loss" not in found["detail"]
        assert found["clicked"] == "#episode=7"
        assert found["checked"] == ["#wrong=1&episode=7", "3 of 8 episodes"]
        assert found["searched"] == ["#wrong=1&q=better+idea&episode=7", "1 of 8 episodes"]

    def test_highlights_tasks_and_keys(self, tmp_path):
        for step in (0, 10, 20):
            rows = [make_row(i, step=step, success=step > 10 * i, prompt=f"task {i}", task=str(i)) for i in range(2)]
            write_episodes(tmp_path, rows, step, kind="eval")
        write_episodes(tmp_path, [make_row(7, step=3, success=False, prompt="one", task="one")])
        write_audit(tmp_path, [make_sample(7, task="one")])
        found = drive(
            write_report(tmp_path),
            """
            const press = async (key) => {
              page.body.dispatchEvent(new seen.KeyboardEvent("keydown", { key, bubbles: true }));
              await wait();
              return seen.location.hash;
            };
            const found = { cards: all(".highlight").map((node) => node.innerText) };
            found.cells = all(".grid-of-tasks tr").map((row) => [...row.cells].map((cell) => cell.innerText.trim()));
            found.preview = text(".detail h3");
            found.keys = [await press("j"), await press("j"), await press("k"), await press("Escape")];
            await press("/");
            found.focus = page.activeElement.name;
            all(".grid-of-tasks button")[1].click();
            await wait();
            found.opened = [text(".detail .pairs"), all(".time").length];
            all(".time")[0].click();
            await wait();
            found.first = text(".detail .pairs");
            all(".highlight button")[0].click();
            await wait();
            found.card = text(".detail .pairs");
            return found;
            """,
        )
        before, after, refined, wrong = found["cards"]
        assert before.startswith("Before") and after.startswith("After") and "at step 20: it succeeded" in after
        for words in ("Critique", "all ends well", "Bellman target", "a door closes"):
            assert words in wrong and words not in refined, words
        for words in ("better idea", "knock before"):
            assert words in refined and words not in wrong, words
        assert found["cells"] == [["task", "0", "10", "20"], ["0 task 0", "✕", "✓", "✓"], ["1 task 1", "✕", "✕", "✓"]]
        assert "Failure" in found["preview"]  # of the audited one
        assert found["keys"] == ["#episode=5", "#episode=6", "#episode=5", ""] and found["focus"] == "q"
        assert "step\n10" in found["opened"][0] and found["opened"][1] == 3
        assert "step\n0" in found["first"] and "step\n0" in found["card"]

    def test_equal_episodes_are_folded_and_turns_have_lines(self, tmp_path):
        told = make_turn(critique='Future: It is shut. open(door="2") It creaks.\nOptimality: No.', verdict=False)
        rows = [make_row(i, prompt="same", task="same", turns=[make_turn()]) for i in range(3)]
        rows += [make_row(3, prompt="same", task="same", turns=[make_turn(action="else")])]
        write_episodes(tmp_path, [*rows, make_row(4, prompt="same", task="same", turns=[told])], kind="eval")
        found = drive(
            write_report(tmp_path),
            """
            const found = { rows: all(".row .facts").map((node) => node.innerText), count: text(".count") };
            seen.location.hash = "episode=2";
            await wait();
            found.next = all(".detail .tools button").map((node) => node.disabled);
            seen.location.hash = "episode=4";
            await wait();
            found.critique = text(".text.critique");
            return found;
            """,
        )
        assert found["count"] == "5 episodes" and ["3 ×" in row for row in found["rows"]] == [True, False, False]
        assert found["next"] == [False, True, False]  # at the place of its equal, the first of the list
        assert found["critique"] == 'Future: It is shut.\nopen(door="2")\nIt creaks.\nOptimality: No.'

    def test_in_a_notebook(self, tmp_path):
        """The frame has no address and no origin of its own: episodes open all the same, and nothing is reached."""
        write_episodes(tmp_path, [make_row(i) for i in range(2)], kind="eval")
        frame = RunReport(write_report(tmp_path))._repr_html_()
        assert 'sandbox="allow-scripts"' in frame and "<script" not in frame
        notebook = tmp_path / "notebook.html"
        notebook.write_text(f"<!doctype html><body>{frame}</body>", encoding="utf-8")
        page, console = open_page(notebook)
        assert not console and page.names().count("iframe") == 1
        # A script of this test in the page, which its policy would not run, opens an episode as a reader does.
        script = """
            <script type="module">
            document.querySelectorAll(".row")[1].click();
            document.querySelector(".row[aria-current=true]") && parent.postMessage(location.hash, "*");
            </script></body>"""
        told = "<script>onmessage = (event) => (document.body.dataset.found = event.data)</script>"
        policy = re.escape(html.escape('<meta http-equiv="Content-Security-Policy"')) + ".*?&gt;"
        probed = re.sub(policy, "", frame).replace(html.escape("</body>"), html.escape(script))
        notebook.write_text(f"<!doctype html><body>{told}{probed}</body>", encoding="utf-8")
        page, console = open_page(notebook)
        assert not console, console
        assert dict(page.tags)["body"]["data-found"] == "#episode=1"

    @pytest.mark.parametrize("width", [390, 1400])
    def test_no_scrolling_sideways(self, tmp_path, width):
        path = write_report(write_run(tmp_path / "run", "x" * 300 + " ordinary words"))
        found = drive(
            path,
            """
            const overflow = () => page.documentElement.scrollWidth - page.documentElement.clientWidth;
            const found = { width: seen.innerWidth, plots: all(".plot svg").length, overflow: [overflow()] };
            for (const i of [0, 1, 2, 3]) {
              seen.location.hash = `episode=${i}`;
              await wait();
              found.overflow.push(overflow());
            }
            const plot = page.querySelector(".plot svg");
            const box = plot.getBoundingClientRect();
            plot.dispatchEvent(new seen.PointerEvent("pointermove", { clientX: box.right - 5, clientY: box.top + 9 }));
            found.tip = text(".tip");
            found.overflow.push(overflow());
            found.listed = page.querySelector(".side").offsetHeight > 0;
            return found;
            """,
            width,
        )
        assert found["width"] == width and found["plots"] >= 5 and found["overflow"] == [0] * 6
        assert "20 environment steps" in found["tip"] and "0.50 (0.30 to 0.70)" in found["tip"]
        assert found["listed"] == (width == 1400)  # on a phone the episode takes its place
