# Copyright 2020-2026 The HuggingFace Team. All rights reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

"""Writing the page."""

import base64
import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jinja2

from ..records.folder import AUDIT, COMPLETIONS, TRAINING_LOG
from .calibration import first_and_last
from .charts import MAX_POINTS, critic_charts, learning_charts, role_charts, time_charts, training_charts
from .log import TrainingLog, read_log
from .run_files import Episodes, read_episodes
from .summary import summarize


_HERE = Path(__file__).parent
_STYLES = ("page.css", "episodes.css")
_SCRIPTS = ("dom.js", "charts.js", "episodes.js")
_ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&"}


def write_report(run: str | Path, output: str | Path | None = None) -> Path:
    """
    Write one HTML page about a training run: its curves, how far the critic can be trusted, and its episodes turn by
    turn. The page needs neither a network nor a server, and may be written while the run goes on.

    Args:
        run (`str` or `Path`):
            Folder of the run, the `output_dir` of its configuration.
        output (`str` or `Path`, *optional*):
            Where to write the page. If `None`, `report.html` in the folder of the run.

    Returns:
        `Path`: where the page is.

    Raises:
        ValueError: If the folder holds nothing of a run.
    """
    run = Path(run).resolve()
    output = run / "report.html" if output is None else Path(output)
    log, episodes = read_log(run / TRAINING_LOG), read_episodes(run)
    if not any([log.training, log.evaluations, episodes.shown]):
        raise ValueError(
            f"`run` is {run}, where nothing of a run can be read: neither {TRAINING_LOG}, nor "
            f"{COMPLETIONS}/*.parquet, nor {AUDIT}/*.parquet. Pass the `output_dir` of a training run that has logged at least once."
        )
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(_page(run, log, episodes), encoding="utf-8", errors="replace")  # names may hold lone surrogates
    return output


def _page(run: Path, log: TrainingLog, episodes: Episodes) -> str:
    charts = {
        "learning": learning_charts(log),
        "training": training_charts(log),
        "roles": role_charts(log),
        "critic": critic_charts(log),
        "time": time_charts(log),
    }
    reliability = first_and_last(episodes.verdicts)
    data = {
        "charts": {key: [asdict(chart) for chart in group] for key, group in charts.items()},
        "reliability": [[asdict(evaluation) for evaluation in evaluations] for evaluations in reliability],
        "episodes": episodes.shown,
    }
    style, script = (
        "\n".join((_HERE / name).read_text(encoding="utf-8") for name in names) for names in (_STYLES, _SCRIPTS)
    )
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE, encoding="utf-8"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.jinja").render(
        summary=summarize(run, log),
        log=log,
        charts=charts,
        max_points=MAX_POINTS,
        reliability=reliability,
        episodes=episodes,
        style=style,
        script=script,
        # Even if something of the model or an environment were not escaped, no script but this one would run.
        policy=f"default-src 'none'; style-src {_source(style)}; script-src {_source(script)}; base-uri 'none'",
        data=_json(data),
    )


def _source(text: str) -> str:
    """Name of an inline style or script in a content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _json(data: Any) -> str:
    """JSON without a character that HTML or JavaScript could take for its own; what is not ASCII is escaped too."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).translate(_ESCAPES)
