# SPDX-License-Identifier: Apache-2.0

"""The run report: one HTML page about a training run, which needs only a browser."""

from .comparison import write_comparison
from .page import RunReport, write_report
