"""Random sentences with what cleaners trip over: numbers, dates, money, shares, places, quotes, abbreviations, emoji, full-width letters."""

EN = """the a one mr. mrs. Dr. St. co. jr. Maj. gen. drs. rev. Lt. Hon. sgt. capt. esq. ltd. col. ft. street Hello world don't it's WE'LL
said "quoted" 'single' “curly” ‘curly’ e-mail @home #tag R&D C# 20° £ $ % & — – … naïve café façade Zürich ſt. Kelvin İstanbul Ωmega ΣΑΣ
a.m. p.m. i.e. etc. 😀 ❤️ ™ © ＡＢＣ ｘｙｚ １２３ ² ½ ٣٤ x_1 _dr. édr. http://a.b/c?d=1&e=2 foo@bar.com [STOP] [UNK] [en] <b> | \\ ~ ^ `
tobacco. disco. best. east. first second tab\there line\u2028sep nbsp\u00a0here zero\u200bwidth \x1c""".split(" ")
ZH = """你好 世界 我们 银行 行长 重庆 的 了 吗 一个 一起 不是 不要 两 儿子 女儿 那边儿 嗯 音乐 快乐 长大 校长 ， 。 ！ ？ 、 ； ： “ ” ‘ ’ （ ） 《 》 — … ·
人民币 美元 元 块 角 分 万 亿 年 月 日 号 个 名 秒 米 千克 微米 岁 多 余 几 百分之 点 hello World Ａｂｃ １２３ ％ % ° £ $ & @ # 😀 〇 㐂 繁體 這個 龘 b2b P2P O2O 二 ~ ^ $ / - +86
重量 还 得 地 着 朝阳 单于 血 给 角色 调查 种子 都市 参差 好 为了 只 卷 结束 处理 曾经 藏 \u3000 「 」 〈 〉""".split()


def number(r):
    n = r.choice([1, 2, 3, 4, 5, 6, 7, 9, 12, 20, 40])
    digits = "".join(r.choice("0123456789") for _ in range(r.randint(1, n)))
    return digits


def english_number(r):
    n = number(r)
    k = r.randrange(16)
    if k == 0:
        return f"{int(n):,}"
    if k == 1:
        return f"{int(n):,}.{number(r)}"
    if k == 2:
        return n + r.choice(["st", "nd", "rd", "th"])
    if k == 3:
        return r.choice("$£€") + r.choice([n[:9], f"{int(n[:9]):,}", f"{n[:7]}.{r.randint(0, 999)}", f"{n[:7]},{r.randint(0, 99):02}"])
    if k == 4:
        return r.choice([n[:9], f"{n[:7]}.{r.randint(0, 99):02}", "1", "1.01"]) + r.choice("$£€")
    if k == 5:
        return f"{n[:15]}{r.choice('.,')}{number(r)[:9]}"
    if k == 6:
        return f"{r.randint(1, 12)}/{r.randint(1, 31)}/{r.randint(1900, 2030)}"
    if k == 7:
        return f"{r.randint(1900, 2030)}-{r.randint(1, 12):02}-{r.randint(1, 31):02}"
    if k == 8:
        return f"{n[:5]}%"
    if k == 9:
        return f"{r.randint(0, 23)}:{r.randint(0, 59):02}"
    if k == 10:
        return f"{r.randint(1, 9)},{n}"
    if k == 11:
        return f"${n}.{n}.{n}" if r.random() < 0.3 else f"-{n}"
    if k == 12:
        return f"{r.randint(1, 30)*10}s"
    if k == 13:
        return r.choice(["$,5", "$.5", "€", "$ 5", "5 $", "£.05", "$1,5", "5.", ".5", "0.001", "1.10", "0.1000000000000000055", "123456789012.345", "$0.005", "$1.005", "9.99€"])
    if k == 14:
        return r.choice("abcé_") + n[:4] + r.choice(["", ",000", ".5", "x"])
    return n


def chinese_number(r):
    n = number(r)
    k = r.randrange(14)
    if k == 0:
        return f"{r.randint(1980, 2030)}年" + r.choice(["", f"{r.randint(1, 12)}月", f"{r.randint(1, 12)}月{r.randint(1, 31)}{r.choice('日号')}"])
    if k == 1:
        return f"{r.randint(1, 12)}月{r.randint(1, 31)}{r.choice('日号')}"
    if k == 2:
        return f"{n[:6]}{r.choice(['', '.5', '.05'])}{r.choice(['', '多', '余', '几'])}{r.choice(['元', '块', '角', '万元', '亿', '千万', '百'])}{r.choice(['', '5角', '3', '5毛'])}"
    if k == 3:
        return r.choice(["", "+86 ", "86"]) + "1" + r.choice(["38", "51", "76", "99", "00"]) + "".join(r.choice("0123456789") for _ in range(8))
    if k == 4:
        return r.choice(["", "010-", "0571-", "021"]) + r.choice("123456789") + "".join(r.choice("0123456789") for _ in range(r.randint(6, 7)))
    if k == 5:
        return f"{n[:3]}/{number(r)[:3]}"
    if k == 6:
        return f"{n[:4]}{r.choice(['', '.5'])}{r.choice('%％')}"
    if k == 7:
        return f"{n[:5]}{r.choice(['', '.25'])}{r.choice(['', '多', '几'])}{r.choice(['个', '名', '千克', '微米', '岁', '天', '张', '毫米'])}"
    if k == 8:
        return n + r.choice(["", "."]) + number(r)
    if k == 9:
        return "".join(chr(ord("０") + int(c)) for c in n[:5])
    if k == 10:
        return f"{r.choice('89')}{r.randint(0, 9)}年"
    if k == 11:
        return f"{r.randint(0, 23)}:{r.randint(0, 59):02}"
    return n


RANGES = [(0x20, 0x7F), (0xA0, 0x250), (0x370, 0x530), (0x600, 0x700), (0x2000, 0x2070), (0x20A0, 0x2200), (0x3000, 0x3040), (0x3400, 0xA000), (0xFF00, 0xFFF0), (0x1F600, 0x1F650), (0x20000, 0x2CEB0)]


def noise(r):
    """A word of any characters."""
    return "".join(chr(r.randrange(*r.choice(RANGES))) for _ in range(r.randint(1, 5)))


def sentence(r, language):
    words, digits, joint = (EN, english_number, " ") if language == "en" else (ZH, chinese_number, "")
    out = []
    for _ in range(r.randint(1, 14)):
        out.append(digits(r) if r.random() < 0.35 else noise(r) if r.random() < 0.05 else r.choice(words))
        if r.random() < 0.15:
            out.append(r.choice([",", ".", "!", "?", ";", "  ", " ", "\n", "'"]))
    return (joint if r.random() < 0.9 else r.choice(["", "  ", " "])).join(out)


OTHER = {
    "es": "Hola Sr. García & la Dra. Pérez @ 5?", "fr": "Bonjour Mme. Moreau, ça va % ou £ ?", "de": "Frau Dr. Müller & Co. GROẞ",
    "pt": "Olá Sra. Silva # $", "it": "Buongiorno, Sig. Rossi ° &", "pl": "P. Kowalski i M. Nowak %", "ar": "مرحبا بالعالم & %",
    "cs": "P. Novák a Dr. Ing. Vojtěch @", "ru": "Здравствуйте Г-н Иванов и Д-р Смирнов г-жаx %", "nl": "Dhr. Jansen & Mevr. de Vries",
    "tr": "Merhaba B. Yılmaz İÖÜ IĞDIR %", "hu": "Dr. Szabó Nőv. itt &", "hi": "नमस्ते दुनिया & %",
}


def other(r, language):
    """A sentence of another language without a digit: words of `OTHER`, their abbreviations in other places, signs and noise."""
    words = OTHER[language].split() + ["&", "@", "%", "#", "$", "£", "°", '"', "a.b", "_dr.", "co.", "ST.", "Jr.", "LTD."]
    out = []
    for _ in range(r.randint(1, 12)):
        word = noise(r) if r.random() < 0.15 else r.choice(words)
        word = r.choice([word, word, word.upper(), word.lower(), word + r.choice(words), word + ".", "(" + word + ")"])
        out.append("".join(c for c in word if not c.isdecimal()))
        if r.random() < 0.15:
            out.append(r.choice([",", ".", "!", "?", "  ", "\t", "'", "\u00a0"]))
    return r.choice([" ", " ", " ", "", "  "]).join(out)
