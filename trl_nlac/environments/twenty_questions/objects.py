# SPDX-License-Identifier: Apache-2.0

"""
Everyday objects and facts about them, for [`~environments.twenty_questions.RuleOracle`].

`ATTRIBUTES` has the phrases with which a question asks for an attribute; after the semicolon, those that ask for its
opposite. `OBJECTS` has the attributes that are true of each object, sorted by category: those of the category, then
those of the object, where `-` removes one of the category. All others are false.
"""

import re
from collections.abc import Iterator


ATTRIBUTES = {
    # What it is
    "alive": "alive, living, living thing, living being, living creature, living organism, organism, life form; "
    "inanimate, inanimate object, nonliving, nonliving thing, non living, non living thing",
    "animal": "animal, creature, fauna",
    "mammal": "mammal",
    "bird": "bird, have feather",
    "insect": "insect, bug",
    "plant": "plant, flora",
    "fruit": "fruit",
    "vegetable": "vegetable, veggie",
    "drink": "drink, drinkable, beverage, drink it, you drink, can drink, people drink",
    "manmade": "man made, manmade, made by people, artificial, manufactured, created by people; "
    "natural, in nature, occur naturally, occur in nature, naturally occurring",
    "vehicle": "vehicle, mode of transportation, means of transportation, for transportation, to transport people",
    "furniture": "furniture, piece of furniture",
    "clothing": "clothing, clothes, article of clothing, piece of clothing, item of clothing, garment, wearable, "
    "you wear, can wear, people wear, wear it, worn, be worn",
    "tool": "tool, hand tool",
    "utensil": "utensil, kitchen utensil, kitchen tool, cutlery, tableware, kitchenware, cookware",
    "appliance": "appliance",
    "music": "musical instrument, instrument, make music, play music, for music, for making music",
    "toy": "toy, play with, play with it, for playing, in sport, for sport, in game, for game, for fun, "
    "for entertainment",
    # Animals and plants
    "water": "live in water, in water, on water, aquatic, live in sea, live in ocean, in ocean, in sea, underwater",
    "pet": "pet, kept as pet, house pet, household pet",
    "farm": "on farm, farm animal, livestock, farm, for farming",
    "meat": "eat meat, carnivore, carnivorous, predator, eat other animal, hunt",
    "legs": "leg",
    "fourlegs": "four leg, 4 leg, quadruped, four legged",
    "fur": "fur, furry, hair, hairy",
    "horns": "horn, antler",
    "fly": "fly, flying, in air, in sky",
    "shell": "shell",
    "flower": "flower, blossom, bloom, petal",
    "tree": "grow on tree, on tree, come from tree",
    # Food
    "edible": "edible, food, food item, you eat, can eat, people eat, eat it, eaten, be eaten, thing to eat",
    "sweet": "sweet, taste sweet, sugary, dessert",
    # Size and shape
    "big": "bigger than breadbox, bigger than bread box, bigger than shoebox, bigger than shoe box, big; "
    "smaller than breadbox, smaller than bread box, smaller than shoebox, smaller than shoe box, small, tiny, little",
    "huge": "bigger than person, bigger than average person, taller than person, heavier than person, huge; "
    "smaller than person, smaller than average person, lighter than person",
    "hand": "in hand, in one hand, in your hand, with one hand, in palm of your hand, in your palm, handheld, "
    "hand held",
    "round": "round, circular, sphere, spherical, ball shaped",
    "sharp": "sharp, pointed, pointy, blade, cut thing, cutting",
    "soft": "soft, fluffy, squishy, soft to touch",
    # What it is made of
    "metal": "metal, metallic, steel, iron",
    "wood": "wood, wooden",
    "plastic": "plastic",
    "glass": "glass",
    "fabric": "fabric, cloth, textile, cotton, wool",
    "paper": "paper, cardboard",
    # What it does
    "electric": "electric, electricity, electrical, electronic, electronic device, electrical device, electric power, "
    "battery, plugged in, electrically powered",
    "engine": "engine, motor, fuel",
    "wheels": "wheel",
    "sound": "sound, make sound, noise, make noise, noisy, loud",
    "light": "give light, give off light, produce light, emit light, light up, light source, source of light, glow, "
    "for light",
    "container": "container, contain thing, hold thing, store thing, carry thing, to hold thing, for storage",
    "write": "write, writing, draw, drawing, write with, draw with, writing tool, writing utensil, writing instrument",
    "clean": "clean, cleaning, washing, wash, hygiene",
    # Where it is
    "kitchen": "kitchen",
    "bedroom": "bedroom",
    "bathroom": "bathroom",
    "office": "office, school, classroom, at school, at work, in office",
    "indoors": "indoor, inside, in house, in household, inside house, around house, household item, household object",
    "outdoors": "outdoor, outside, out of door, in garden",
    # Colours that are typical of it
    "red": "red",
    "yellow": "yellow",
    "green": "green",
    "white": "white",
}

_CATEGORIES = """
alive animal mammal legs fourlegs fur sound outdoors:
    dog: pet meat big indoors; cat: pet meat big soft indoors; rabbit: pet soft -sound; horse: farm big huge; cow:
    farm horns big huge; pig: farm -fur big; sheep: farm big soft white; deer: horns big; lion: meat big huge;
    elephant: -fur big huge; whale: -legs -fourlegs -fur meat water big huge
alive animal bird legs sound outdoors:
    chicken: farm; duck: farm water fly; eagle: meat fly big; penguin: meat water big white; parrot: pet fly
    indoors green red
alive animal outdoors:
    shark: meat water big huge; goldfish: pet water hand indoors -outdoors; frog: water legs fourlegs hand green
    sound; snake: meat; turtle: pet water legs fourlegs shell green; crab: water legs shell red; bee: insect legs
    fly hand sound yellow; butterfly: insect legs fly hand; ant: insect legs hand; spider: meat legs hand indoors
alive plant outdoors:
    tree: wood big huge green; cactus: sharp green; rose: flower sharp red; sunflower: flower big yellow; grass:
    soft green
edible fruit sweet kitchen indoors hand:
    apple: tree round red green; banana: tree yellow; orange: tree round; lemon: tree -sweet yellow; cherry: tree
    round red; strawberry: red; grape: round green; coconut: tree shell round white; watermelon: -hand big round
    green red; pineapple: -hand sharp yellow
edible vegetable kitchen indoors hand:
    carrot:; potato: round; onion: round white; corn: sweet yellow; broccoli: green; pumpkin: -hand big round
edible manmade kitchen indoors:
    bread: soft; cheese: yellow; pizza: round; cake: sweet soft round; chocolate: sweet hand; ice cream: sweet
    soft; sandwich: hand; egg: -manmade shell hand white; honey: -manmade sweet yellow; rice: -manmade white
drink kitchen indoors:
    milk: white; coffee: manmade; wine: manmade red; lemonade: manmade sweet yellow
manmade kitchen indoors:
    spoon: utensil metal hand; fork: utensil metal hand sharp; knife: utensil metal hand sharp tool; cup: utensil
    container hand round; plate: utensil round; bowl: utensil container round; bottle: container glass plastic
    hand; frying pan: utensil metal round; refrigerator: appliance electric metal container sound big huge white;
    oven: appliance electric metal big; toaster: appliance electric metal; kettle: appliance electric metal
    container sound
manmade furniture indoors big:
    chair: wood legs fourlegs kitchen office; table: wood legs fourlegs kitchen; desk: wood legs fourlegs office;
    bed: wood fabric legs fourlegs soft bedroom huge; sofa: fabric soft huge; bookcase: wood container office;
    wardrobe: wood container bedroom huge
manmade indoors:
    lamp: electric light bedroom office; mirror: glass bathroom bedroom; clock: round sound kitchen bedroom office;
    candle: light hand; pillow: fabric soft bedroom big; blanket: fabric soft bedroom big huge; key: metal hand;
    coin: metal hand round; vase: glass container; wallet: container hand
manmade clothing bedroom indoors:
    hat: fabric; shirt: fabric soft; coat: fabric big outdoors; sock: fabric soft hand; glove: fabric soft hand
    outdoors; shoe: outdoors; belt:; ring: metal round hand; glasses: glass plastic hand
manmade vehicle metal wheels engine sound big huge outdoors:
    car: glass; truck: glass container; train: glass electric; tractor: farm; motorcycle:; bicycle: -engine -sound
    -huge; airplane: glass fly; helicopter: glass fly -wheels; boat: wood water -metal -wheels
manmade tool:
    hammer: indoors metal wood hand; screwdriver: indoors metal plastic hand; saw: metal wood sharp; axe: metal
    wood sharp outdoors; scissors: indoors metal sharp hand office; drill: indoors electric metal sharp sound;
    ladder: metal wood big huge; shovel: metal wood big outdoors farm; broom: wood clean big indoors
manmade electric plastic indoors:
    telephone: sound hand office; computer: office light; television: glass sound light big; camera: glass hand;
    radio: sound; flashlight: tool light hand; washing machine: appliance -plastic metal clean sound big
manmade music sound indoors:
    guitar: wood big; piano: wood legs big huge; violin: wood; drum: round big; flute: metal hand; trumpet: metal
manmade toy:
    football: round outdoors; kite: fabric fly outdoors; balloon: round soft; doll: plastic indoors bedroom; teddy
    bear: fabric fur soft indoors bedroom; skateboard: wood wheels vehicle outdoors
manmade office indoors:
    pencil: wood write hand; pen: plastic metal write hand; book: paper hand bedroom; newspaper: paper; ruler: wood
    plastic hand; envelope: paper container hand; backpack: fabric container big outdoors
manmade bathroom indoors clean:
    toothbrush: plastic hand; soap: hand; towel: fabric soft big; comb: plastic hand -clean; bathtub: container
    white big huge
manmade outdoors big:
    house: wood glass huge; bridge: metal huge; tent: fabric huge; umbrella: fabric metal; traffic light: metal
    electric light red yellow green
"""

# Other names with which an object can be guessed.
_ALIASES = """
automobile: car; bike: bicycle; bookshelf: bookcase; couch: sofa; eyeglasses: glasses; fridge: refrigerator;
motorbike: motorcycle; pan: frying pan; phone: telephone; plane: airplane; soccer ball: football; spectacles:
glasses; torch: flashlight; tv: television
"""


def _entries(text: str) -> list[list[str]]:
    """Read entries like `name: words; name: words`."""
    return [" ".join(entry.split()).split(":") for entry in text.split(";")]


def _objects() -> Iterator[tuple[str, frozenset[str]]]:
    for category, listed in re.findall(r"^(\S.*):\n((?: .*\n)+)", _CATEGORIES, re.MULTILINE):
        for name, own in _entries(listed):
            taken_away = {word[1:] for word in own.split() if word.startswith("-")}
            given = {word for word in own.split() if not word.startswith("-")}
            yield name, frozenset(set(category.split()) - taken_away | given)


OBJECTS = dict(_objects())
ALIASES = {alias: name.strip() for alias, name in _entries(_ALIASES)}
