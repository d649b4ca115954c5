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

"""Made-up names for rooms and requests: two syllables each, seeded, and disjoint between uses."""

import random


def _names() -> list[str]:
    syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
    names = [first + second for first in syllables for second in syllables if first != second]
    random.Random("names").shuffle(names)
    return names


# "Known" names belong to instances that an embedded model was trained on. Instances drawn from a seed use "new" names,
# whose rules differ in every instance.
_NAMES = _names()
ROOMS_OF_KNOWN_WORLDS = _NAMES[:96]
ROOMS_OF_NEW_WORLDS = _NAMES[96:144]
REQUESTS_OF_KNOWN_DESKS = _NAMES[144:192]
REQUESTS_OF_NEW_DESKS = _NAMES[192:240]
ALL_NAMES = _NAMES[:240]
# For the variants of the service desk, and for customers.
REQUESTS_OF_KNOWN_HINTED_DESKS = _NAMES[240:272]
REQUESTS_OF_KNOWN_DELAYED_DESKS = _NAMES[272:304]
CUSTOMERS = _NAMES[304:336]
HELD_OUT_CUSTOMERS = _NAMES[336:368]
NAMES_OF_VARIANTS = _NAMES[240:368]
