# SPDX-License-Identifier: Apache-2.0

"""The audit trail: single training samples with their targets, refinements and losses."""

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from ..secrets import hide_secrets
from ..types import Answer, Judgement, Refinement, Sample, TrainingExample
from .folder import RECORD_FILE, audit_file, write_table


SAMPLE = pa.schema(
    {
        "step": pa.int64(),  # optimizer steps of the weights that wrote target and refined action
        "environment_steps": pa.int64(),
        "process": pa.int32(),
        "episode": pa.int64(),
        "turn": pa.int32(),
        "task": pa.string(),  # JSON
        "observation": pa.string(),
        "action": pa.string(),
        "next_observation": pa.string(),
        "reward": pa.float64(),
        "return": pa.float64(),
        "terminated": pa.bool_(),
        "critique": pa.string(),  # of the stored action, with the policy's weights
        "verdict": pa.bool_(),
        "verdict_score": pa.float64(),
        "target": pa.string(),
        "target_verdict": pa.bool_(),
        "attempt": pa.string(),  # the action that was refined
        "attempt_critique": pa.string(),
        "attempt_verdict": pa.bool_(),
        "refined_action": pa.string(),
        "critic_loss": pa.float64(),  # null if it was not trained on
        "policy_loss": pa.float64(),
        "priority": pa.float64(),  # with which it was drawn
    }
)

MAX_ROWS = 100_000  # of a process


class AuditTrail:
    """Write a row for each audited sample to parquet files, of which at most `MAX_ROWS` rows are kept."""

    def __init__(self, output_dir: str | Path, process: int):
        self.output_dir = Path(output_dir)
        self.process = process
        self._rows: list[dict[str, Any]] = []  # of finished iterations
        self._open: dict[int, list[dict[str, Any]]] = {}  # of the current iteration, by transition
        self.newest: dict[str, Any] | None = None  # row with a critique, a target and a refined action
        self._sizes: dict[Path, int] | None = None  # rows of this process's files, oldest first; read once

    def open(
        self,
        samples: list[Sample],
        judgements: list[Judgement | None],
        targets: list[Answer],
        refinements: list[Refinement | None],
        step: int,
        environment_steps: int,
    ) -> None:
        """Begin the rows of an iteration, one for each judgement of the first samples."""
        parts = zip(samples, judgements, targets, refinements, strict=False)  # there are fewer judgements
        for sample, judgement, target, refinement in parts:
            transition = sample.transition
            row = {
                "step": step,
                "environment_steps": environment_steps,
                "process": self.process,
                "episode": sample.transition_id - transition.index,
                "turn": transition.index,
                "observation": transition.observation,
                "action": transition.turn.action,
                "next_observation": transition.turn.next_observation,
                "reward": transition.turn.reward,
                "return": transition.episode.score,
                "terminated": transition.terminated,
                "priority": sample.priority,
                **(judgement._asdict() if judgement else {}),
            }
            if target.parsed is not None:
                row |= {"target": target.text, "target_verdict": target.parsed.optimal}
            if refinement is not None:
                row |= {
                    "attempt": refinement.action,
                    "attempt_critique": refinement.critique.text,
                    "attempt_verdict": refinement.critique.optimal,
                    "refined_action": refinement.refined_action.parsed,
                }
            # By these add_losses tells the draws of a transition apart.
            completions = {"critic": list(target.token_ids)}
            if refinement is not None:
                completions["policy"] = list(refinement.refined_action.token_ids)
            task = json.dumps(hide_secrets(transition.episode.task))  # hiding in the JSON would break it
            row = {**hide_secrets(row), "task": task, "completions": completions}
            self._open.setdefault(sample.transition_id, []).append(row)

    def add_losses(self, examples: list[TrainingExample], losses: torch.Tensor) -> None:
        """Add the losses of a micro-batch, each to the row whose target or refined action was trained on."""
        for example, loss in zip(examples, losses.tolist(), strict=True):
            name, completion = f"{example.loss}_loss", list(example.completion_ids)
            rows = self._open.get(example.transition_id, [])
            of_draw = (row for row in rows if name not in row and row["completions"].get(example.loss) == completion)
            row = next(of_draw, None)
            if row is not None and example.weight > 0:
                row[name] = loss

    def close(self) -> None:
        """Complete the rows of the current iteration. An action that was rewritten says most to a reader."""
        rows = list(chain.from_iterable(self._open.values()))
        for row in rows:
            del row["completions"]
        self._rows += rows
        told = [row for row in rows if row.get("refined_action") and row.get("critique") and row.get("target")]
        self.newest = max(reversed(told), key=lambda row: row["refined_action"] != row["attempt"], default=self.newest)
        self._open.clear()

    def write(self, step: int) -> None:
        """Write the rows of the iterations that were finished at `step`, and delete files past the limit."""
        if not self._rows:
            return
        path = audit_file(self.output_dir, step, self.process)
        if self._sizes is None:
            self._sizes = self._read_sizes(path.parent)
        table = pa.Table.from_pylist(self._rows, schema=SAMPLE)
        if path.exists():  # the end of training can be at the step of a log
            table = pa.concat_tables([pq.read_table(path, schema=SAMPLE), table])
        write_table(table, path)
        self._sizes[path] = len(table)
        self._rows = []
        excess = sum(self._sizes.values()) - MAX_ROWS
        for oldest in list(self._sizes)[:-1]:
            if excess <= 0:
                break
            oldest.unlink(missing_ok=True)
            excess -= self._sizes.pop(oldest)

    def _read_sizes(self, folder: Path) -> dict[Path, int]:
        """Count the rows of the files that this process wrote before the run was resumed."""
        files = [(RECORD_FILE.fullmatch(path.name), path) for path in folder.glob(f"*_process{self.process}.parquet")]
        steps = sorted((int(match["step"]), path) for match, path in files if match)
        return {path: _num_rows(path) for _, path in steps}

    def state_dict(self) -> dict[str, list[Any]]:
        """Return the rows that are not written yet, for a checkpoint."""
        return {"audit": self._rows, "open_audit": [[number, rows] for number, rows in self._open.items()]}

    def load_state_dict(self, state: dict[str, list[Any]]) -> None:
        """Load a state from [`AuditTrail.state_dict`]."""
        self._rows = state.get("audit", [])
        self._open.clear()
        for number, rows in state.get("open_audit", []):
            self._open.setdefault(number, []).extend(rows)


def _num_rows(path: Path) -> int:
    """Count the rows of a file; 0 if it is damaged."""
    try:
        return pq.read_metadata(path).num_rows
    except (pa.ArrowException, OSError):
        return 0
