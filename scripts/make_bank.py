"""Write the starter's bank: everyday captions from a small grammar of our own.

    python scripts/make_bank.py [--texts 2000] [--seed 0] > src/ucofia/data/bank.txt

What people film and look for: people and what they do where, animals, vehicles, food, rooms,
streets, nature, weather, sport, music, screens. Short queries and whole sentences, no two alike,
and then single words, so that a query of one word is judged beside others of its kind.
"""

import argparse
import random

ONE = """a man|a woman|a boy|a girl|a child|an old man|an old woman|a young man|a young woman|
someone|a person|a man with a beard|a woman in a dress|a woman with long hair|a man in a suit|
a man with glasses|a girl in a red jacket|a boy in a blue shirt|a person in a hat"""
SEVERAL = """two men|two women|two children|two people|three friends|some people|a few kids|
several people|young people|a man and a woman|a mother and her child|a father and his son"""
# What is done, and where it is done.
DOINGS = (
    (
        """cook|cut vegetables|wash the dishes|bake a cake|drink coffee|eat breakfast|pour tea|
        stir a pot|open a bottle|clean the floor""",
        "in a kitchen|at home|at a table|in a restaurant",
    ),
    (
        """read a book|watch television|sleep|play a video game|hold a baby|play with a cat|
        open a present|look at a phone|put on make-up|try on clothes|sit on a sofa|sew""",
        "in a living room|in a bedroom|at home|by a window|on a bed",
    ),
    (
        """walk|run|ride a bicycle|ride a motorcycle|cross the road|wait for a bus|push a pram|
        carry a bag|walk a dog|do a trick on a skateboard|take a photograph|hold an umbrella""",
        "on a street|in a city|in the rain|on a busy road|at night|in a park|on a bridge",
    ),
    (
        """sit on a bench|fly a kite|play with a dog|throw a ball|have a picnic|lie on the grass|
        plant a tree|pick flowers|feed the birds|jump over a puddle|climb a tree|blow bubbles""",
        "in a park|in a garden|on a field|in the sun|in autumn",
    ),
    (
        """surf|swim|build a sand castle|walk a dog|run|lie in the sun|dive|sail|row a boat|fish|
        jump into the water|splash in the water""",
        "at the sea|on a beach|in the waves|on a lake|at sunset",
    ),
    (
        """hike|climb a rock|ski|ride a snowboard|pull a sledge|camp|make a fire|ride a horse|
        chop wood|carry a backpack|throw snowballs""",
        "in the mountains|in the snow|in a forest|on a hill|by a river",
    ),
    (
        """play football|play basketball|play tennis|lift weights|do yoga|box|run a race|
        do gymnastics|play volleyball|swing a golf club|kick a ball|play baseball|skate""",
        "in a stadium|in a gym|on a sports field|in front of a crowd|on a court",
    ),
    (
        """sing|dance|play the guitar|play the piano|play the drums|give a speech|play the violin|
        tell a joke|hold a microphone|take a bow""",
        "on a stage|at a concert|at a party|in front of people|in a studio",
    ),
    (
        """work at a computer|write on a board|talk on the phone|give a lecture|shake hands|
        read a paper|draw a plan|look into a microscope|talk in a meeting""",
        "in an office|in a classroom|at a desk|in a laboratory",
    ),
    (
        """repair a car|build a wall|paint a fence|cut wood|drive a tractor|weld metal|
        load a truck|wear a helmet|feed the cows|pick fruit""",
        "in a workshop|on a building site|on a farm|in a factory",
    ),
    (
        """buy fruit|sell fish|push a trolley|look at a shop window|stand in a queue|pay""",
        "at a market|in a shop|in a shopping street|in a supermarket",
    ),
    (
        """talk to the camera|laugh|smile|hug a friend|wave|clap|kiss|cry|point at something|
        blow out candles|shave|brush the teeth""",
        "in front of a white wall|in a room|outdoors|in the evening",
    ),
)
PETS = "a dog|a puppy|a black dog|two dogs|a cat|a kitten|two cats"
PETS_DO = """run across the grass|jump over a fence|sleep on a sofa|eat from a bowl|swim|
catch a ball|carry a stick|look into the camera|roll on the floor|chase a toy|shake off water|
lie in the sun|look out of a window"""
FARM = "a horse|two horses|a cow|a sheep|a goat|a pig|a chicken|a herd of cows|ducks"
FARM_DO = "graze on a meadow|stand in a field|drink water|run|walk along a road|eat hay"
WILD = """a lion|a tiger|an elephant|a giraffe|a monkey|a deer|a wolf|a bear|a fox|a squirrel|
a rabbit|a panda|zebras"""
WILD_DO = "walk through the grass|sleep under a tree|eat leaves|look around|climb|drink at a river"
BIRDS = "a parrot|an owl|an eagle|a flock of birds|a seagull|pigeons|a swan"
BIRDS_DO = "fly in the sky|sit on a branch|land on the water|look for food|spread wings"
SEA = "a fish|a shark|a whale|a dolphin|a turtle|colourful fish|a jellyfish"
SEA_DO = "swim under water|swim in an aquarium|jump out of the water|swim past a diver"
BEASTS = ((PETS, PETS_DO), (FARM, FARM_DO), (WILD, WILD_DO), (BIRDS, BIRDS_DO), (SEA, SEA_DO))
VEHICLES = """a red car|a white van|a truck|a bus|a motorcycle|a bicycle|a train|a tram|a taxi|
a police car|a tractor|a racing car|a fire engine"""
VEHICLE_IS = """driving down the road|parked in front of a house|at a traffic light|in the snow|
on a bridge|at night|seen from above|in slow motion|turning around a corner|covered in mud"""
CRAFT = "an aeroplane|a helicopter|a hot air balloon|a rocket|a drone|a sailing boat|a ship"
CRAFT_IS = "against a blue sky|at sunset|above the clouds|leaving|seen from far away|over the sea"
FOOD = """a pizza|a salad|a cake with candles|a cup of coffee|a glass of wine|a bowl of soup|
fruit|bread|sushi|a hamburger|noodles|ice cream|a plate of food|vegetables"""
FOOD_IS = """on a table|on a wooden board|in a restaurant|from above|close up|being prepared|
on a white plate|at a market"""
THINGS = """a robot|a clock|a lamp|a candle|a computer screen|a mobile phone|a camera|a guitar|
a piano|a stack of books|a painting|a sculpture|toys|a balloon|flowers in a vase|
a plant in a pot|a chair|a bag|shoes|a watch|a laptop|a mirror|a suitcase"""
THING_IS = """on a table|on a white background|in a dark room|close up|in a shop window|on a shelf|
in the morning light|in black and white|in someone's hands|on the floor"""
BUILT = """a bridge|a tower|a castle|a church|skyscrapers|a wooden house|a staircase|an old door|
a modern building|a temple|a lighthouse|a railway station|a fountain|ruins"""
BUILT_IS = """at night|at sunset|from above|in the fog|in the snow|under a blue sky|by a river|
with people in front of it|in an old town|in black and white"""
STILLS = (
    (VEHICLES, VEHICLE_IS),
    (CRAFT, CRAFT_IS),
    (FOOD, FOOD_IS),
    (THINGS, THING_IS),
    (BUILT, BUILT_IS),
)
SCENES = """waves break on rocks|clouds move over mountains|snow falls on a village|
rain runs down a window|traffic on a motorway at night|people cross a street|leaves in the wind|
a waterfall in a forest|stars in the night sky|the moon rises|the sun sets over the sea|
an underwater scene with fish|a city from above|an aerial view of fields|an empty corridor|
a football match in a stadium|a concert with lights|a wedding|a birthday party|a parade|
a news studio|a cartoon|a scene from a video game|text on a screen|a map|a diagram|a title card|
a timelapse of a city|a river in a valley|fog in a forest|a storm at sea|lightning|a market|
a factory with machines|an experiment in a laboratory|a lecture|an interview|a cooking show|
a recipe step by step|a tutorial about software|a car race|a horse race|a swimming race|
a crowd at a demonstration|a classroom full of children|a field of flowers|fireworks|a campfire|
a kitchen with white cupboards|a bright living room|a desert road|a frozen lake|autumn leaves"""
WORDS = """
aeroplane airport apple arm art baby backpack bakery ball balloon banana band bank barn basket
bath beach beard bed bee beer bell bench bicycle bicycles bird birds birthday boat boats book
books bottle bowl boxing boy boys bread bride bridge bus bush butterfly cake camel camera
candle candles car cars carpet cartoon castle cat cats chair cheese chef chess chicken child
children church cinema city climbing clock cloud clouds clown coat coffee computer concert
cooking corn court cow cows crab crane crocodile crowd cup curtain dance dancing deer desert
desk dinner diver diving doctor dog dogs doll dolphin donkey door dragon drawing dress driving
drone drums duck ducks eagle egg elephant elephants face factory family farm farmer fence field
fire fireworks fish fishing flag flower flowers fog football forest fountain fox frog fruit
funeral garage garden gate ghost giraffe girl girls glass glasses goat gold golf grandmother
grapes grass guitar gun gym hair hammer hand hands harbour hat helicopter helmet hiking hill
hockey holiday horse horses hospital hotel house houses ice insect island jacket jungle
kangaroo keyboard kids kitchen kite knife lake lamp laptop laughing leaf leaves lemon library
lighthouse lightning lion lorry machine magic make-up man map market medal meeting men
microphone milk mirror money monkey moon mosque motorcycle mountain mountains mouse mud museum
mushroom music necklace needle news night nurse ocean office onion opera orange orchestra owl
painting palm panda parade park parrot party pasta penguin people phone piano picnic pig pilot
pizza plane plant plants plate playground police pool potato present protest puppet puppy queen
rabbit race rain rainbow restaurant rice ring river road robot rocket roof rope rose rugby
ruins running sailing salad sand sandwich school scissors sculpture sea seal shadow shark sheep
ship shirt shoes shop sign singing singer skateboard skating skeleton skiing sky skyscraper
sleeping smoke snail snake snow snowboard soldier soldiers soup spider spoon stadium stage
stairs star stars station statue storm street strawberries suit suitcase sun sunset supermarket
surfing surgery sushi swan swimming swimmer sword table tank taxi tea teacher temple tennis
tent theatre thunder tiger toilet tomato toothbrush tower toy toys tractor traffic train trains
tree trees trophy truck tunnel turtle umbrella uniform vegetables village violin volcano
volleyball waiter wall watch water waterfall waves wedding whale wheel wheelchair wind window
wine winter wolf woman women wood workshop worm wrestling writing yoga zebra zoo"""
INTO_VIEW = ("a video of ", "a clip of ", "we see ")
DOUBLED = {"run", "swim", "cut", "hug", "put", "clap", "chop", "sit"}
IRREGULAR = {"do": "does", "have": "has", "lie": "lies"}


def words(block: str) -> list[str]:
    return [" ".join(part.split()) for part in block.split("|")]


def third(action: str) -> str:
    """Inflect the first word: he `rides a bicycle`."""
    verb, _, rest = action.partition(" ")
    if verb.endswith(("s", "sh", "ch", "x")):
        verb += "es"
    elif verb.endswith("y") and verb[-2] not in "aeiou":
        verb = verb[:-1] + "ies"
    else:
        verb = IRREGULAR.get(verb, verb + "s")
    return f"{verb} {rest}".strip()


def going(action: str) -> str:
    """Inflect the first word: somebody `riding a bicycle`."""
    verb, _, rest = action.partition(" ")
    if verb in DOUBLED:
        verb += verb[-1]
    elif verb == "lie":
        verb = "ly"
    elif verb.endswith("e") and not verb.endswith("ee"):
        verb = verb[:-1]
    return f"{verb}ing {rest}".strip()


def is_plural(who: str) -> bool:
    several = who in words(SEVERAL) or who.startswith(("two ", "pigeons", "zebras", "ducks"))
    return several or who == "colourful fish"


def sentence(rng: random.Random, who: str, action: str, place: str = "") -> str:
    """Say that somebody does something, in one of the ways in which people say it."""
    where = f" {place}" if place else ""
    if rng.random() < 0.4:
        return f"{who} {action if is_plural(who) else third(action)}{where}"
    start = rng.choice(INTO_VIEW) if rng.random() < 0.5 else ""
    return f"{start}{who} {going(action)}{where}"


def text(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.5:
        actions, places = rng.choice(DOINGS)
        who = rng.choice(words(ONE if rng.random() < 0.7 else SEVERAL))
        place = rng.choice(words(places)) if rng.random() < 0.6 else ""
        return sentence(rng, who, rng.choice(words(actions)), place)
    if kind < 0.65:
        beasts, actions = rng.choice(BEASTS)
        return sentence(rng, rng.choice(words(beasts)), rng.choice(words(actions)))
    if kind < 0.85:
        things, states = rng.choice(STILLS)
        start = rng.choice(INTO_VIEW) if rng.random() < 0.2 else ""
        return f"{start}{rng.choice(words(things))} {rng.choice(words(states))}"
    if kind < 0.92:
        return rng.choice(words(SCENES))
    return going(rng.choice(words(rng.choice(DOINGS)[0])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    found: dict[str, None] = {}
    while len(found) < arguments.texts:
        found.setdefault(text(rng))
    found.update(dict.fromkeys(WORDS.split()))
    print("\n".join(found))


if __name__ == "__main__":
    main()
