# SPDX-License-Identifier: Apache-2.0

"""
The pages of the documentation say what is true: their Python runs as it is printed, and their links, commands,
options, metrics and error messages exist.

Python blocks and `trl-nlac` commands of a page are one session. They run in a folder with a finished run in
`my-agent`. Every model of the Hub that they name is the embedded one, and training takes one small step. A block that
cannot run has the comment `<!-- not run: reason -->` on the line above it.
"""

import argparse
import ast
import dataclasses
import inspect
import json
import pydoc
import re
import runpy
import shlex
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import huggingface_hub.constants
import pytest
import transformers
import yaml
from accelerate.commands.launch import launch_command_parser
from helpers.testing_utils import TASKS, make_trained
from trl import GRPOConfig, TrlParser

import trl_nlac
from trl_nlac import NLACAgent, NLACConfig, NLACTrainer
from trl_nlac.cli.main import COMMANDS, main
from trl_nlac.environments import EnvironmentFailure, StepResult
from trl_nlac.environments.embedded import TINY_MODEL


ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "docs" / "source"
PAGES = [ROOT / "README.md", *sorted(SOURCE.glob("*.md"))]
OTHERS = [ROOT / "AGENTS.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "examples" / "README.md"]
BY_NAME = {page.stem: page for page in PAGES}

FENCE = re.compile(r"^(?:<!--(?P<comment>.*)-->\n)?```(?P<language>\w*)\n(?P<text>(?:.*\n)*?)```$", re.MULTILINE)
NOT_RUN = re.compile(r" not run: \S.* ")


class Block(NamedTuple):
    language: str
    text: str
    comment: str
    line: int  # of the page, before the first one of the text


def blocks(page: Path) -> list[Block]:
    page_text = page.read_text()
    return [
        Block(match["language"], match["text"], match["comment"] or "", page_text[: match.start("text")].count("\n"))
        for match in FENCE.finditer(page_text)
    ]


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text())


def runnable(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.language == "python" and "not run" not in block.comment]


# Python


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> NLACTrainer:
    """A trainer that evaluated, wrote a checkpoint and saved its model, of which the pages speak."""
    folder = tmp_path_factory.mktemp("finished") / "my-agent"
    config = {"max_steps": 1, "save_strategy": "steps", "save_steps": 1, "eval_strategy": "steps", "eval_steps": 1}
    trainer = make_trained(folder, {**config, "logging_steps": 1, "num_eval_critiques": 4}, eval_dataset=TASKS)
    trainer.save_model()
    (folder / "checkpoint-1").rename(folder / "checkpoint-500")
    return trainer


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """
    Puts the models that a text names into a cache of the Hub, without a network: each is the embedded model, with the
    context of a model of the Hub.
    """
    stand_in = tmp_path / "stand_in"
    shutil.copytree(TINY_MODEL, stand_in)
    config = json.loads((stand_in / "config.json").read_text())
    (stand_in / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 32768}))
    cache, commit = tmp_path / "hub", 40 * "0"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)

    def add(text: str) -> None:
        for name in set(re.findall(r'"([\w-]+/[\w.-]+)"', text)):
            folder = cache / f"models--{name.replace('/', '--')}"
            (folder / "refs").mkdir(parents=True)
            (folder / "refs" / "main").write_text(commit)
            (folder / "snapshots").mkdir()
            (folder / "snapshots" / commit).symlink_to(stand_in)

    return add


@pytest.fixture
def small(monkeypatch):
    """Whatever a page configures is cut to one small step on a CPU, and nothing is uploaded."""
    fixed = dict(
        use_cpu=True, bf16=False, report_to="none", disable_tqdm=True, max_steps=1, per_device_train_batch_size=2
    )
    fixed.update(logging_steps=1, eval_steps=1, save_steps=1)
    most = dict(max_completion_length=8, max_turns=2, num_eval_critiques=2, num_eval_episodes=2)
    post_init = NLACConfig.__post_init__

    def shrunk(args: NLACConfig) -> None:
        vars(args).update(fixed, **{name: min(value, vars(args)[name]) for name, value in most.items()})
        post_init(args)

    monkeypatch.setattr(NLACConfig, "__post_init__", shrunk)
    monkeypatch.setattr(transformers.Trainer, "push_to_hub", lambda trainer, *args, **kwargs: None)
    monkeypatch.setenv("OPENAI_API_KEY", "none")


@pytest.mark.parametrize("name", [page.stem for page in PAGES if runnable(page) or "\ntrl-nlac " in page.read_text()])
def test_python_and_commands_run_as_they_are_printed(name, tmp_path, monkeypatch, capsys, finished, hub, small):
    page = BY_NAME[name]
    shutil.copytree(finished.args.output_dir, tmp_path / "my-agent")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for block in blocks(page):
        first_line = block.text.partition("\n")[0]
        if block.language in ("yaml", "json", "python") and re.fullmatch(r"# [\w.]+", first_line):
            Path(first_line[2:]).write_text(block.text)  # a file that the page shows
    shown = [block for block in blocks(page) if "not run" not in block.comment]
    hub("".join(block.text for block in shown))
    session = {"__name__": name}
    for block in shown:
        if block.language == "python":
            if re.search(r"\.train\(\)", block.text):
                shutil.rmtree("my-agent", ignore_errors=True)  # a new run wants a folder of its own
            exec(compile("\n" * block.line + block.text, str(page), "exec"), session)
            shutil.copytree(finished.args.output_dir, "my-agent", dirs_exist_ok=True)
        elif block.language == "bash":
            for words in lines(block):
                if words[:1] == ["trl-nlac"]:
                    assert main(words[1:]) == 0, capsys.readouterr().err


def test_example_of_the_trainer_runs(tmp_path, monkeypatch, hub, small):
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", inspect.getdoc(NLACTrainer), re.DOTALL)
    hub(example)
    exec(example, {"__name__": "example"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_is_not_run_has_a_reason(page):
    found = blocks(page)
    assert 2 * len(found) == len(re.findall("^ *```", page.read_text(), re.MULTILINE)), "a block is not read"
    for block in found:
        if "not run" in block.comment:
            assert NOT_RUN.fullmatch(block.comment) and block.language in ("python", "bash"), block.comment
    comments = re.findall("<!-- *not run.*-->", page.read_text())
    assert len(comments) == sum("not run" in block.comment for block in found), "a comment is not above a block"


# Commands


class Parsed(Exception):
    """Carries the arguments that a parser does not know out of a script."""


def lines(block: Block) -> list[list[str]]:
    return [shlex.split(line, comments=True) for line in block.text.replace("\\\n", " ").splitlines()]


def commands(page: Path) -> list[list[str]]:
    found = []
    for line in [line for block in blocks(page) if block.language == "bash" for line in lines(block)]:
        words = [re.sub(r"\$\w+", "0", word) for word in line]
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words.pop(0)
        if words[:2] == ["accelerate", "launch"] or words[:1] == ["python"] and words[1].startswith("examples/"):
            found.append(words)
    return found


def split_command(words: list[str]) -> tuple[str, list[str]]:
    if words[0] == "python":
        return words[1], words[2:]
    launch = launch_command_parser().parse_args(words[2:])
    assert launch.config_file is None or (ROOT / launch.config_file).is_file(), launch.config_file
    return launch.training_script, launch.training_script_args


def unknown_arguments(script: str, arguments: list[str], monkeypatch) -> list[str]:
    """Return the arguments that the script's parser does not know; a value that it refuses raises."""
    if script == "my_script.py":  # of a reader
        return TrlParser((NLACConfig,)).parse_known_args([*arguments, "--output_dir", "run"])[1]
    if script == "trl_nlac":  # the command line as a module, whose own commands are run elsewhere
        assert arguments[0] in COMMANDS
        return []

    read = TrlParser.parse_args_and_config

    def parse(parser, *args, return_remaining_strings=False, **kwargs):
        if return_remaining_strings:  # a first look at options that decide the defaults of others
            return read(parser, return_remaining_strings=True)
        raise Parsed(parser.parse_known_args()[1])

    with monkeypatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", parse)
        patch.setattr(TrlParser, "parse_args_and_config", parse)
        patch.setattr(sys, "argv", [script, *arguments])
        with pytest.raises(Parsed) as parsed:
            runpy.run_path(str(ROOT / script), run_name="__main__")
    return parsed.value.args[0]


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: page.stem)
def test_commands_name_scripts_and_arguments_that_exist(page, monkeypatch):
    for words in commands(page):
        script, arguments = split_command(words)
        assert not unknown_arguments(script, arguments, monkeypatch), words


def test_make_targets_exist():
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for page in PAGES:
        for block in blocks(page):
            if block.language == "bash":
                assert set(re.findall(r"^make ([\w-]+)", block.text, re.MULTILINE)) <= set(targets), page
        assert set(re.findall(r"`make ([\w-]+)", prose(page))) <= set(targets), page


def test_yaml_files_exist():
    """Those of the package and of the examples; `run.yaml` and the like are files that a page shows."""
    folders = ("trl_nlac/recipes", "trl_nlac/accelerate_configs", "examples/recipes")
    known = {path.name for folder in folders for path in (ROOT / folder).glob("*.yaml")}
    for page in PAGES:
        shown = {block.text.partition("\n")[0].removeprefix("# ") for block in blocks(page)}
        named = re.findall(r"([\w-]+\.yaml)\b", page.read_text())
        assert set(named) <= known | shown, page
    listed = re.findall(r"^\| \[`(\w+\.yaml)`\]", BY_NAME["cli"].read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(path.name for path in (ROOT / folders[0]).glob("*.yaml"))


@pytest.mark.parametrize("page", OTHERS, ids=lambda page: page.stem)
def test_python_files_that_other_pages_name_exist(page):
    paths = [p.as_posix() for f in ("trl_nlac", "tests", "benchmarks", "examples") for p in (ROOT / f).rglob("*.py")]
    for name in re.findall(r"[\w./]+\.py\b", page.read_text()):
        assert any(path.endswith("/" + name.lstrip("./")) for path in paths), name


# Links, options, metrics, messages


def slugs(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if not re.match(r"[a-z]+:", link):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), link
            assert not anchor or anchor in slugs(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_line_is_a_comment_by_accident(page):
    """Sphinx's Markdown drops a line that begins with a percent sign."""
    assert not re.findall(r"^ *%.*", prose(page), re.MULTILINE)


def test_built_pages_have_every_object_and_open_the_sample_report():
    conf = runpy.run_path(str(ROOT / "docs" / "conf.py"))
    for page in SOURCE.glob("*.md"):
        source = [page.read_text()]
        links = {*re.findall(r"\((\w+\.html)\)", source[0])}
        conf["on_source_read"](None, page.stem, source)
        assert "[[autodoc]]" not in source[0], page
        assert all(f"source/{link}" in conf["html_extra_path"] and f'<a href="{link}">' in source[0] for link in links)


def test_pages_are_short():
    words = {page: len(page.read_text().split()) for page in PAGES}
    assert words[BY_NAME["README"]] <= 900 and sum(words.values()) <= 32_000


def test_every_page_is_in_the_navigation():
    toctree = yaml.safe_load((SOURCE / "_toctree.yml").read_text())
    listed = [page["local"] for section in toctree for page in section["sections"]]
    assert sorted(listed) == [page.stem for page in sorted(SOURCE.glob("*.md"))]


def spans(page: Path) -> list[str]:
    return re.findall(r"`([^`]+)`", prose(page))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_options_exist(page):
    known = {field.name for field in dataclasses.fields(NLACConfig)}
    documented = re.findall(r"^\[\[autodoc\]\] ([\w.]+)$", page.read_text(), re.MULTILINE)
    items = [NLACTrainer, NLACTrainer.train, NLACAgent.from_pretrained, StepResult]
    items += [pydoc.locate(f"trl_nlac.{name}") for name in documented]
    for item in items:
        if item is not EnvironmentFailure:  # errors have no signature
            known |= inspect.signature(item).parameters.keys()
    assert {match[1] for span in spans(page) if (match := re.match(r"([a-z_]+)=", span))} <= known


def test_names_exist():
    paths = [path for folder in ("trl_nlac", "examples") for path in (ROOT / folder).rglob("*.py")]
    known = {field.name for field in dataclasses.fields(NLACConfig)}
    known |= {"get_last_checkpoint"} | {field.name for field in dataclasses.fields(GRPOConfig)}  # transformers', TRL's
    known.update(*(re.findall(r"\w+", path.read_text()) for path in paths))
    for page in PAGES:
        assert {span for span in spans(page) if re.fullmatch(r"[a-z]+(_[a-z0-9]+)+", span)} <= known, page


def documented_metrics() -> set[str]:
    return {span for name in ("metrics", "environments") for span in spans(BY_NAME[name])}


def test_every_logged_metric_is_documented(finished):
    logged = {name for entry in finished.state.log_history for name in entry if "/" in name}
    assert "eval_oracle/verdict_no_rate" in logged and "critic/loss" in logged
    documented = documented_metrics()
    for name in logged:
        name = re.sub(r"pass\^\d+", "pass^k", name)
        name = re.sub(r"^(tokens/\w+)/\w+$", r"\1/<role>", name)
        group, _, last = name.removeprefix("eval_").partition("/")
        in_group = f"{group}/*" in documented and last in documented
        assert in_group or {name, name.removeprefix("eval_")} & documented, name


def test_metrics_of_the_faq_exist():
    groups = {name.split("/")[0] for name in documented_metrics() if re.fullmatch(r"\w+/[\w^*]+", name)}
    for span in spans(BY_NAME["faq"]):
        group, _, last = span.partition("/")
        if group in groups and last and "*" not in last:
            named = {span, span.removeprefix("eval_"), f"eval_{span}"} & documented_metrics()
            assert named or {f"{group}/*", last} <= documented_metrics(), span


def messages_of_the_code() -> list[str]:
    """Every string of the package, without backticks and with `...` for what is filled in."""
    found = []
    for path in Path(trl_nlac.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(part.value if isinstance(part, ast.Constant) else "..." for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(re.sub(r"%[\d.]*[sdf]", "...", node.value))
    return [text.replace("`", "") for text in found]


def test_messages_of_the_faq_are_those_of_the_code():
    page = BY_NAME["faq"]
    quoted = [line for block in blocks(page) if block.language == "text" for line in block.text.splitlines()]
    for table in re.findall(r"^\| message \|.*\n((?:\|.*\n)+)", prose(page), re.MULTILINE):
        quoted += re.findall(r"^\| `([^|]+)` \|", table, re.MULTILINE)
    assert len(quoted) > 20
    messages = messages_of_the_code()
    for line in quoted:
        pattern = re.compile(".*".join(map(re.escape, line.replace("`", "").split("..."))))
        assert any(pattern.search(message) for message in messages), line
