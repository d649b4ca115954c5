# SPDX-License-Identifier: Apache-2.0

import pandas as pd
import pyarrow.parquet as pq


CONFIG = {"max_steps": 4, "samples_per_iteration": 8, "logging_steps": 2, "max_turns": 2}


def read(path) -> pd.DataFrame:
    return pq.read_table(path).to_pandas()
