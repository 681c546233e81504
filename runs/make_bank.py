"""Write the starter's bank: everyday captions from a small grammar of our own.

    python runs/make_bank.py [--texts 2000] [--seed 0] > src/ucofia/data/bank.txt

What people film and look for: people and what they do, animals, vehicles, food, rooms, streets,
nature, weather, sport, music, screens. Short queries and whole sentences, no two alike.
"""

import argparse
import random

PEOPLE = """a man|a woman|a boy|a girl|a baby|a child|two children|a group of people|an old man|
an old woman|a young couple|a family|three friends|a crowd|a teacher|a chef|a nurse|a worker|
a musician|a singer|a dancer|an athlete|a player|a soldier|a farmer|a tourist|somebody"""
DOES = """walks|runs|dances|sings|talks to the camera|laughs|cries|sleeps|eats|drinks coffee|cooks|
cuts vegetables|washes the dishes|reads a book|writes on paper|draws a picture|paints a wall|
plays the guitar|plays the piano|plays the drums|plays football|plays basketball|plays tennis|
plays a video game|rides a bicycle|rides a horse|drives a car|swims|dives|surfs|skis|climbs|
jumps|does a trick on a skateboard|lifts weights|does yoga|boxes|throws a ball|catches a ball|
takes a photograph|looks at a phone|works at a computer|gives a speech|holds a sign|opens a box|
shows a product|puts on make-up|combs the hair|tries on clothes|builds a house|repairs a car|
cuts wood|plants a tree|feeds the birds|walks a dog|holds a baby|blows out candles|waves|claps|
hugs a friend|shakes hands|kisses|prays|fishes|sails|camps|makes a fire|folds paper|sews"""
PLACES = """in a kitchen|in a living room|in a bedroom|in a bathroom|in an office|in a classroom|
in a shop|in a restaurant|in a gym|in a hospital|in a church|in a museum|in a theatre|on a stage|
in a stadium|in a park|in a garden|in a forest|in the mountains|in the desert|in the snow|
in the rain|on a beach|at the sea|by a lake|on a river|on a boat|on a bridge|on a street|
on a busy road|in a tunnel|at a station|at an airport|in a car|on a train|in a field|on a farm|
in a swimming pool|on a playground|in front of a house|on a roof|in a city at night|at sunset"""
ANIMALS = """a dog|a puppy|a cat|two cats|a kitten|a horse|a cow|a sheep|a goat|a pig|a chicken|
a duck|a parrot|an owl|an eagle|a flock of birds|a fish|a shark|a whale|a dolphin|a turtle|
a snake|a frog|a spider|a bee|a butterfly|a rabbit|a squirrel|a mouse|a bear|a panda|a lion|
a tiger|an elephant|a giraffe|a monkey|a deer|a wolf|a penguin"""
ANIMAL_DOES = """runs|jumps|sleeps|eats|drinks water|swims|flies|climbs a tree|plays with a ball|
looks into the camera|chases another animal|sits still|walks slowly|rolls on the ground|
is being fed|licks its paw|shakes itself dry|hides"""
THINGS = """a red car|a white van|a truck|a bus|a motorcycle|a bicycle|a train|an aeroplane|
a helicopter|a rocket|a ship|a sailing boat|a tractor|a robot|a drone|a clock|a lamp|a candle|
a fire|fireworks|a fountain|a flag|a computer screen|a mobile phone|a keyboard|a camera|
a guitar|a piano|a book|a painting|a sculpture|a toy|a ball|a balloon|a cake|a pizza|a salad|
a cup of coffee|a glass of wine|a bowl of soup|fruit|flowers|a tree|a plant in a pot|a bridge|
a tower|a castle|a church|skyscrapers|a wooden house|a staircase|a door|a window|a bed|a chair"""
THING_IS = """moves past|stands still|is turning|is falling|is burning|is being built|is shown|
is on a table|seen from above|seen from close by|in slow motion|in black and white|
with people around it|at night|in the morning light|in the background"""
SCENES = """waves break on rocks|clouds move over mountains|snow falls on a village|
rain runs down a window|traffic on a motorway at night|people cross a street|leaves in the wind|
a waterfall in a forest|stars in the night sky|the moon rises|the sun sets over the sea|
an underwater scene with fish|a city from above|an aerial view of fields|an empty corridor|
a football match in a stadium|a concert with lights|a wedding|a birthday party|a parade|
a news studio|a cartoon|a scene from a video game|text on a screen|a map|a diagram|a title card|
a timelapse of a city|a river in a valley|fog in a forest|a storm at sea|lightning|a market|
a factory with machines|an experiment in a laboratory|a lecture|an interview|a cooking show|
a recipe step by step|a tutorial about software|a car race|a horse race|a swimming race"""
STARTS = ("", "", "", "a video of ", "a clip in which ", "there is ", "we see ")


def words(block: str) -> list[str]:
    return [part.strip() for part in block.replace("\n", "").split("|")]


def text(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.4:
        parts = [rng.choice(words(PEOPLE)), rng.choice(words(DOES))]
        if rng.random() < 0.6:
            parts.append(rng.choice(words(PLACES)))
    elif kind < 0.6:
        parts = [rng.choice(words(ANIMALS)), rng.choice(words(ANIMAL_DOES))]
        if rng.random() < 0.4:
            parts.append(rng.choice(words(PLACES)))
    elif kind < 0.8:
        parts = [rng.choice(words(THINGS)), rng.choice(words(THING_IS))]
    elif kind < 0.9:
        parts = [rng.choice(words(SCENES))]
    else:
        parts = [rng.choice(words(rng.choice((PEOPLE, ANIMALS, THINGS)))).split(" ", 1)[-1]]
        return parts[0]
    return rng.choice(STARTS) + " ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    found: dict[str, None] = {}
    while len(found) < arguments.texts:
        found.setdefault(text(rng))
    print("\n".join(found))


if __name__ == "__main__":
    main()
