# SPDX-License-Identifier: Apache-2.0

"""`python -m trl_nlac`, and `accelerate launch -m trl_nlac`."""

from .cli.main import main


if __name__ == "__main__":
    raise SystemExit(main())
