# SPDX-License-Identifier: Apache-2.0

"""What the training loop needs in addition to the method."""
