"""Sentences of ten languages for `texts.py`: plain ones, and those in which marks are not the end of anything."""

NAMES = "Smith|O'Brien|Mary-Jane|J. R. R. Tolkien|George W. Bush|McDonald|Zoë|Ludwig van Beethoven|J.K. Rowling|Ms. Jones|St. John".split("|")
NUMBERS = "7|12|1,234|3.14|0.5|2,500,000|1st|22nd|1999|007|1/2|50%|10:30|-4|1.|42.".split("|")
MONEY = "$5|$3.50|£1,200|€20|5 dollars|$1.2 million".split("|")
DATES = "January 5th, 2024|5/12/2023|2024-01-05|the 1990s|Dec. 25|Mon., 3 p.m.|4 July 1776".split("|")
PLACES = "www.example.com|https://example.org/a?b=c|me@example.com|U.S.A.|the U.K.|N.Y.|NASA|Washington, D.C.|p. 12|No. 5|fig. 3".split("|")

ENGLISH = """The {name} family arrived on {date}.
It costs {money}, not {money}!
Did {name} really say {number} of them?
"I don't know," said {name}, "but we'll see."
Dr. {name} met Mrs. {name} at {place}.
Wait... what was that?
He left — or so they say — at {number} o'clock.
The answer (see {place}) is {number}.
She can't, won't and shouldn't go; that's final.
There are three things: bread, milk and {number} eggs.
HELLO THERE, IS ANYBODY HOME?
'Tis the season to be jolly.
We ate, drank, e.g. tea, etc. and went home.
"Stop!" he cried. "Who's there?"
The prices rose from {number} to {number} on {date}.
Visit {place} for more information.
I think so… maybe.
What?! You can't be serious!
It was the best of times, it was the worst of times.
Mr. and Mrs. {name} live at {number} Main St. in {place}.
Yes.
No, thank you
Is it A, B or C? Nobody knows.
He works for {place}, i.e. from nine to five.
The temperature fell to {number} °C that night.
They're over there, aren't they?
Chapter IV. The return of King Louis XIV.
“Curly quotes,” she said, “are fine.” Then she left.
Well, um, you know -- it's complicated.
She read the book yesterday and will read it again tomorrow.
A semi-colon; a colon: a dash - and a slash / here.
The {name} vs. {name} match ended {number} to {number}.
"Is this the end?" "It is."
One. Two. Three.
Please turn left, then right, then left again.
The quick brown fox jumps over the lazy dog.
Ask not what your country can do for you.
I saw the end of the hour in the air above the island.
He said (quietly) that it was over (at last).
[Laughter] That is all.""".split("\n")

OTHERS = {
    "de": """Guten Tag, wie geht es Ihnen?|Am 3. Oktober 2024 war alles geschlossen.|Das kostet 12,50 €, z. B. im Laden.|„Komm her!“, rief sie.|Der König Ludwig XIV. regierte lange.|Dr. Müller wohnt in der Hauptstr. 5.|Es war einmal ein Mann, der hatte drei Söhne.|Warum nicht? Weil es regnet!|Die Temperatur sinkt auf -4 Grad.|Er sagte: Ich komme um 10.30 Uhr.|Das ist – wie gesagt – nicht möglich…|Straße, Größe, Übung und Äpfel.|1.000 Menschen kamen am 1. Mai.|Ja; nein; vielleicht.|«So geht das», meinte er.|Der Computer hat ein Update.|Wir fahren nach Zürich (Schweiz).|Schöne Grüße aus München!""",
    "es": """¿Cómo estás? Muy bien, gracias.|¡Qué sorpresa! No lo esperaba.|El Sr. García vive en la calle 5, n.º 12.|Cuesta 3,50 € o 1.200 pesos.|Hola, ¿qué tal?|Dijo: «Vamos a casa».|Nació el 12 de octubre de 1999.|La niña comió… y se durmió.|Esto —como ves— no funciona.|EE. UU. es un país grande.|Uno; dos; tres: ¡ya!|El pingüino vive en el sur.|¿Y tú? ¿De dónde eres?|Llegaron a las 10:30 h.|Me gusta el jazz y el software libre.|«¿Quién es?», preguntó ella.|Sí.""",
    "fr": """Bonjour, comment allez-vous ?|C'est la vie ! Qu'en pensez-vous ?|M. Dupont habite au 5, rue de la Paix.|Il a dit : « Venez ici ! »|Ça coûte 3,50 €, soit 1 200 francs.|Aujourd'hui, l'hiver est arrivé…|Le 1er janvier 2024, tout était fermé.|Louis XIV régna longtemps.|J'ai vu un film — très long — hier.|Où est-ce ? Là-bas; non, ici.|Mme Martin et le Dr Petit sont là.|Les œufs, les bœufs et l'été.|Il est 10 h 30.|Non.|Le week-end, je fais du shopping.|Qu'est-ce que c'est ? Un chat.""",
    "it": """Buongiorno, come sta?|Che bella giornata! Andiamo al mare.|Il Sig. Rossi abita in via Roma, 5.|Costa 3,50 € oppure 1.200 lire.|Ha detto: «Vieni qui!»|Oggi è il 2 giugno 1946.|Perché no? Perché piove…|L'amico dell'uomo è il cane.|Questo – come vedi – non va.|Uno; due; tre.|La città è più grande di così.|Sono le 10:30.|Sì.|Il computer e il weekend.|Luigi XIV fu re di Francia.""",
    "pt": """Bom dia, como está?|Que surpresa! Não esperava.|O Sr. Silva mora na rua 5, n.º 12.|Custa 3,50 € ou 1.200 reais.|Ele disse: «Vem cá!»|Nasceu em 12 de outubro de 1999.|A menina comeu… e dormiu.|Isto — como vês — não funciona.|Um; dois; três: já!|O coração da mãe é grande.|São 10:30.|Sim.|Onde está o João? Aqui.|O software é livre.|D. João VI foi rei.""",
    "ru": """Здравствуйте, как дела?|Какой сюрприз! Я не ожидал.|Это стоит 3,50 руб. или 1 200 долларов.|Он сказал: «Иди сюда!»|Сегодня 12 апреля 1961 г.|Москва – столица России.|Почему нет? Потому что идёт дождь…|А. С. Пушкин родился в 1799 году.|Один; два; три.|И т. д. и т. п.|Да.|Пётр I основал город.|Мой компьютер Windows работает.|Ёлка, объект, подъезд.|— Кто там? — Это я.""",
    "cmn": """你好，世界！|你叫什么名字？我叫小明。|今天是2024年1月5日。|他说：“我们走吧。”|这个东西要三块五毛钱。|北京、上海、广州都是大城市。|真的吗？！太好了……|银行里有50%的人。|我喜欢看书；他喜欢听音乐。|不行。|现在是10:30。|《红楼梦》是一本书。|请问,洗手间在哪里?|他用的是Windows电脑。|第一，第二，第三。""",
    "pl": """Dzień dobry, jak się masz?|Co za niespodzianka! Nie spodziewałem się.|Pan dr Kowalski mieszka przy ul. Długiej 5.|To kosztuje 3,50 zł, np. w sklepie.|Powiedział: „Chodź tu!”|Dziś jest 3 maja 1791 r.|Dlaczego nie? Bo pada…|Jeden; dwa; trzy.|To – jak widzisz – nie działa.|Zażółć gęślą jaźń.|Tak.|Jan III Sobieski był królem.|Jest godz. 10:30.|W 2. rozdziale jest więcej.|Komputer i weekend.""",
    "nl": """Goedemorgen, hoe gaat het?|Wat een verrassing! Dat had ik niet verwacht.|Dhr. De Vries woont op nr. 5.|Het kost € 3,50 of 1.200 gulden.|Hij zei: "Kom hier!"|Op 3. oktober 1574 was het feest.|Waarom niet? Omdat het regent…|Een; twee; drie.|Dit – zoals je ziet – werkt niet.|'s Morgens eet ik brood.|Ja.|Lodewijk XIV was koning.|Het is 10.30 uur.|De computer en het weekend.|Zeeën, ideeën en coördinatie.""",
}  # fmt: skip


def english(r):
    """One to three sentences with their slots filled."""

    def filled(sentence):
        for slot, words in [("name", NAMES), ("number", NUMBERS), ("money", MONEY), ("date", DATES), ("place", PLACES)]:
            while "{" + slot + "}" in sentence:
                sentence = sentence.replace("{" + slot + "}", r.choice(words), 1)
        return sentence

    return r.choice([" ", " ", " ", "  ", "\n", "\n\n"]).join(filled(r.choice(ENGLISH)) for _ in range(r.choice([1, 1, 2, 3])))


def other(r, voice):
    """One to three sentences of a language, now and then with a mark that is not theirs at the end."""
    sentences = OTHERS[voice].split("|")
    text = r.choice([" ", " ", " ", "\n"]).join(r.choice(sentences) for _ in range(r.choice([1, 1, 2, 3])))
    return r.choice([text, text, text, f"({text})", f'"{text}"', text.rstrip(".!?。"), text + "..", text.replace(" ", ", ", 1)])


def noise(r):
    """Marks, spaces and words in any order."""
    of = [*".,?!:;-\"'()[]/…—–«»“”’¿¡。，？", "...", "..", "\n", "\n\n", *" " * 8, "the", "Cat", "I", "12", "3", "XV", "é", "²", "Dr.", "e.g.", "&", "\u00a0", "\u00ad"]
    return "".join(r.choice(of) for _ in range(r.randint(1, 14)))
