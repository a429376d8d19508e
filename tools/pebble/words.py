"""Word lists the generators draw from. Plain data."""

GIRLS = "Mira Anna Lena Sofia Nora Ella Ruby Hazel Ivy Clara Daisy Wren Olive Pearl Tilda Juno".split()
BOYS = "Tom Ben Oskar Finn Leo Max Hugo Jonas Felix Otto Emil Paul Rufus Theo Kai Milo".split()
NAMES = GIRLS + BOYS
PLACES = "Tarn Elmwood Brook Stonegate Highfield Lakeside Fernhill Oakton Mossdale Windmere".split()
CITIES = PLACES + "Paris London Berlin Rome Madrid Tokyo Oslo Lima Cairo Vienna Dublin Boston".split()
COLORS = "red blue green yellow white black brown orange purple pink grey silver golden".split()
ANIMALS = "cat dog fox owl bear mouse rabbit horse cow duck frog goat sheep wolf hen pig".split()
ITEMS = ("lamp cup key box book coat hat shoe map ring drum bell rope coin clock chair table basket bottle knife spoon "
         "pen stone leaf flute kite candle mirror blanket ladder bucket brush ball bag wheel letter").split()
FOODS = "bread soup apples cheese honey cake plums fish beans rice pears noodles pancakes carrots berries pie".split()
ROOMS = "kitchen garden cellar attic hall barn tower library workshop stable bedroom office".split()
JOBS = ("baker teacher farmer painter doctor sailor gardener carpenter singer miller weaver potter "
        "shepherd fisher tailor cook").split()
HOBBIES = ("chess swimming singing dancing drawing reading fishing running cooking knitting climbing "
           "painting gardening sailing").split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = ("January February March April May June July August September October November December").split()
SKIES = "sunny rainy cloudy windy snowy foggy stormy clear".split()
ADJECTIVES = ("small big old new happy quiet brave kind clever warm cold soft bright dark tall little lovely strange "
              "gentle round").split()
NUMBERS = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
           "seventeen eighteen nineteen twenty").split()

# Sorted and copied by the list tasks: nouns a reader knows, no two of them alike.
NOUNS = sorted(set(ITEMS + ANIMALS + FOODS + (
    "apple bird boat bridge cloud corn door egg field fire flower forest gate grass hill house island jar king lake "
    "milk moon nest night ocean park pond queen rain river road salt sand sea ship snow star storm street sun tea "
    "tree train valley village wall water wind window winter wood yard").split()))

# Words of everyday English that a visitor may type; they reach the model only inside questions it cannot answer.
COMMON = ("the be to of and a in that have it for not on with he as you do at this but his by from they we say her she or "
          "an will my one all would there their what so up out if about who get which go me when make can like time no "
          "just him know take people into year your good some could them see other than then now look only come its over "
          "think also back after use two how our work first well way even new want because any these give day most us "
          "are is was were has had been said did does doing done made went gone got let put tell told ask need feel try "
          "leave call keep begin seem help talk turn start show hear play run move live believe hold bring happen write "
          "read learn change lead understand watch follow stop create speak spend grow open walk win offer remember love "
          "consider appear buy wait serve die send expect build stay fall cut reach kill remain world school state family "
          "student group country problem hand part place case week company system program question government number "
          "night point home water room mother area money story fact month lot right study book eye job word business "
          "issue side kind head house service friend father power hour game line end member law car city community name "
          "president team minute idea kid body information nothing ago parent face others level office door health person "
          "art war history party result morning reason research girl guy moment air teacher force education foot boy age "
          "policy music market sense nation plan college interest death experience effect class control field development "
          "role effort rate heart drug light voice wife police mind price son hope view relationship town road arm true "
          "difference value computer language machine science number phone internet code file error list example please "
          "thanks hello yes maybe always never often really very much many more little long great big high small large "
          "next early young important few public bad same able capital france germany england america planet earth ocean "
          "mountain doctor engine model token memory python function movie song football weather today tomorrow yesterday "
          "recipe dinner breakfast lunch coffee tea chicken pizza summer spring autumn holiday birthday travel train "
          "airplane bicycle bus ticket hotel doctor medicine history physics chemistry biology mathematics "
          "poem essay summary email translate explain describe compare define solve calculate meaning life").split()

OPPOSITES = {"big": "small", "hot": "cold", "old": "new", "happy": "sad", "day": "night", "up": "down", "left": "right",
             "open": "closed", "fast": "slow", "hard": "soft", "light": "dark", "long": "short", "high": "low",
             "full": "empty", "early": "late", "strong": "weak", "wet": "dry", "clean": "dirty", "rich": "poor",
             "loud": "quiet", "near": "far", "first": "last", "good": "bad", "black": "white", "inside": "outside"}
SOUNDS = {"cat": "meow", "dog": "woof", "cow": "moo", "duck": "quack", "sheep": "baa", "pig": "oink", "hen": "cluck",
          "owl": "hoot", "frog": "croak", "mouse": "squeak", "wolf": "howl", "horse": "neigh"}
THING_COLORS = {"the sky": "blue", "grass": "green", "snow": "white", "the sun": "yellow", "coal": "black",
                "a banana": "yellow", "a tomato": "red", "an orange": "orange", "milk": "white", "a carrot": "orange",
                "a plum": "purple", "honey": "golden", "a leaf": "green", "the night": "black", "an elephant": "grey"}

LEGS = {"dog": 4, "cat": 4, "cow": 4, "horse": 4, "sheep": 4, "goat": 4, "pig": 4, "mouse": 4, "fox": 4, "bear": 4,
        "hen": 2, "duck": 2, "owl": 2, "bird": 2, "spider": 8, "bee": 6}
KINDS_OF = {"fruit": ["apple", "pear", "plum"], "color": ["red", "blue", "green"], "colour": ["red", "blue", "green"],
            "animal": ["fox", "owl", "rabbit"], "bird": ["owl", "duck", "hen"], "tree": ["oak", "elm", "pine"],
            "job": ["baker", "teacher", "farmer"], "month": ["May", "June", "July"], "number": ["7", "12", "42"],
            "food": ["bread", "soup", "cheese"], "village": ["Tarn", "Brook", "Oakton"], "letter": ["a", "b", "c"]}

SYLLABLES = "ba be bo da do fi fu ga go ka ki la lo lu ma mi mo na ni no pa pe ra ri ro sa so ta ti to va vi wo za zu".split()


def made_up(rng, syllables=3):
    """A word nobody knows, such as 'Takilo'."""
    return "".join(rng.pick(SYLLABLES) for _ in range(syllables)).capitalize()


def joined(items, last="and"):
    """'a', 'a and b', 'a, b and c'."""
    items = list(items)
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + f" {last} " + items[-1]
