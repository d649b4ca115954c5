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

"""The page of the report."""

import base64
import hashlib
import html
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jinja2

from ..records.folder import AUDIT, COMPLETIONS, TRAINING_LOG
from ..records.log import TrainingLog, read_log
from ..secrets import hide_secrets
from .calibration import first_and_last
from .charts import MAX_POINTS, critic_charts, learning_charts, role_charts, time_charts, training_charts
from .run_files import Episodes, read_episodes
from .summary import summarize


_HERE = Path(__file__).parent
_STYLES = ("page.css", "episodes.css")
_SCRIPTS = ("dom.js", "charts.js", "episodes.js")
_ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&"}


@dataclass(frozen=True)
class RunReport:
    """
    A written report. A notebook shows it inline, in a frame that can reach neither the notebook nor a network.

    Args:
        path (`Path`):
            The page.
    """

    path: Path

    def _repr_html_(self) -> str:
        page = html.escape(self.path.read_text(encoding="utf-8"))
        style = "width: 100%; height: 800px; border: 1px solid #8888"
        return f'<iframe srcdoc="{page}" sandbox="allow-scripts" style="{style}" title="Run report"></iframe>'


def write_report(run: str | Path, output: str | Path | None = None) -> Path:
    """
    Write one HTML page about a training run: its curves, the critic's calibration, and its episodes turn by turn. The
    page needs neither a network nor a server, and can be written during the run.

    Args:
        run (`str` or `Path`):
            Folder of the run, the `output_dir` of its configuration.
        output (`str` or `Path`, *optional*):
            File to write. If `None`, `report.html` in the folder of the run.

    Returns:
        `Path`: The file.

    Raises:
        ValueError: If there is no such folder, or it has no data of a run.
    """
    run = Path(run).resolve()
    if not run.is_dir():
        raise ValueError(f"`run` is {run}, and there is no such folder.")
    output = run / "report.html" if output is None else Path(output)
    log, episodes = read_log(run / TRAINING_LOG), read_episodes(run)
    if not any([log.training, log.evaluations, episodes.shown]):
        raise ValueError(
            f"`run` is {run}, which has no readable {TRAINING_LOG}, {COMPLETIONS}/*.parquet or {AUDIT}/*.parquet. "
            "Pass the `output_dir` of a training run that has logged at least once."
        )
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(_page(run, log, episodes), encoding="utf-8", errors="replace")  # names can have lone surrogates
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
        # Even if a text of the model or an environment were not escaped, only this script could run.
        policy=f"default-src 'none'; style-src {_source(style)}; script-src {_source(script)}; base-uri 'none'",
        data=_json(hide_secrets(data)),
    )


def _source(text: str) -> str:
    """Return the name of an inline style or script in a content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _json(data: Any) -> str:
    """Encode JSON in ASCII, without characters that have a meaning in HTML."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).translate(_ESCAPES)
