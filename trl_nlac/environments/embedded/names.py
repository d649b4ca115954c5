# SPDX-License-Identifier: Apache-2.0

"""Made-up names for rooms and requests: two syllables each, seeded, and disjoint between uses."""

import random


_SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
_NAMES = [first + second for first in _SYLLABLES for second in _SYLLABLES if first != second]
random.Random("names").shuffle(_NAMES)
# "Known" names belong to instances that an embedded model was trained on. Instances drawn from a seed use "new" names,
# whose rules differ in every instance.
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
