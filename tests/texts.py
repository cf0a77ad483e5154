"""
Sample texts of the kinds that an Agent's conversation is made of, some thousand characters each.

Prose is written for this file; the rest is generated from a seed, or is the source of Python's own library.
"""
# ruff: noqa: RUF001 - letters of other scripts that look like Latin ones are what is wanted here

import base64
import inspect
import json
import random
import shlex
import textwrap
from collections.abc import Callable
from typing import Any

CHARS = 4000

_ENGLISH = """
The ferry leaves at half past six, and whoever comes later has to wait for the mail boat.
We changed the supplier in March because two deliveries in a row had arrived with broken seals.
Please look at the third paragraph again; the figures there do not match the ones in the appendix.
My grandmother kept bees behind the barn, and every autumn she gave a jar of honey to each of the neighbours.
The committee decided to postpone the vote until the auditors have finished their report on the new building.
If the temperature drops below four degrees, close the outer valve first and then call the engineer on duty.
Nobody remembers who painted the small portrait in the hallway, but everyone notices when it hangs crooked.
I would rather walk than wait for the bus, unless it rains as heavily as it did yesterday afternoon.
The library was quiet except for an old man who turned the pages of an atlas without looking at them.
Your booking includes breakfast, a parking space and free cancellation until the evening before arrival.
Researchers found that the river carries twice as much sand as it did before the dam was removed.
She answered the letter the same day, thanked him for the photographs, and did not mention the money.
Customers who pay within ten days may deduct two percent, provided that no earlier invoice is still open.
The orchestra rehearsed the slow movement four times before the conductor was satisfied with the horns.
There is a bakery on the corner that sells bread from the day before at half the price after five o'clock.
"""
_KOREAN = """
아침 일찍 시장에 가면 갓 잡은 생선과 싱싱한 채소를 싸게 살 수 있습니다.
지난달에 공급 업체를 바꾼 이유는 물건이 두 번이나 늦게 도착했기 때문입니다.
회의는 다음 주 화요일로 미루어졌으며 장소는 아직 정해지지 않았습니다.
할머니께서는 마당 뒤에서 벌을 키우셨고 가을마다 이웃들에게 꿀을 나누어 주셨어요.
온도가 사 도 아래로 내려가면 먼저 바깥 밸브를 잠그고 담당 기술자에게 연락하세요.
도서관은 조용했고 한 노인이 지도책을 천천히 넘기고 있었습니다.
예약에는 아침 식사와 주차 공간이 포함되어 있으며 전날 저녁까지 무료로 취소할 수 있습니다.
연구자들은 댐이 없어진 뒤에 강이 예전보다 두 배나 많은 모래를 나른다는 사실을 알아냈습니다.
그녀는 같은 날 편지에 답장을 쓰고 사진을 보내 주어서 고맙다고 말했습니다.
비가 어제처럼 많이 오지 않는다면 버스를 기다리는 것보다 걸어가는 편이 낫겠어요.
위원회는 감사 보고서가 나올 때까지 새 건물에 대한 결정을 미루기로 했습니다.
골목 끝에 있는 빵집은 다섯 시가 지나면 전날 만든 빵을 반값에 팝니다.
"""
_JAPANESE = """
朝早く市場へ行くと、獲れたばかりの魚や新鮮な野菜を安く買うことができます。
先月、仕入れ先を変更したのは、商品が二回続けて遅れて届いたからです。
会議は来週の火曜日に延期され、場所はまだ決まっていません。
祖母は庭の裏で蜂を飼っていて、毎年秋になると近所の人たちに蜂蜜を配っていました。
温度が四度を下回ったら、まず外側のバルブを閉めてから、当番の技術者に連絡してください。
図書館は静かで、一人の老人が地図帳のページをゆっくりとめくっていた。
ご予約には朝食と駐車場が含まれており、前日の夜まで無料でキャンセルできます。
研究者たちは、ダムが撤去されてから川が以前の二倍の砂を運んでいることを発見した。
彼女はその日のうちに手紙の返事を書き、写真を送ってくれたことに感謝した。
昨日ほど雨が強くなければ、バスを待つよりも歩いたほうがいいと思います。
委員会は、監査の報告書が完成するまで新しい建物についての採決を見送ることに決めた。
角のパン屋では、五時を過ぎると前の日のパンを半額で売っている。
"""
_CHINESE = """
清晨去市场，可以买到刚捕上来的鱼和新鲜的蔬菜，价格也便宜。
上个月我们更换了供应商，因为货物连续两次延迟送达。
会议推迟到下周二举行，地点目前还没有确定。
祖母在院子后面养蜜蜂，每年秋天都会送给邻居们一罐蜂蜜。
如果温度低于四度，请先关闭外侧的阀门，然后联系值班的工程师。
图书馆里很安静，只有一位老人在慢慢地翻看地图册。
您的预订包含早餐和停车位，入住前一天晚上之前可以免费取消。
研究人员发现，水坝拆除以后，河流携带的泥沙是过去的两倍。
她当天就回了信，感谢他寄来的照片，却没有提到钱的事情。
如果雨没有昨天那么大，我宁愿走路也不想等公共汽车。
委员会决定，在审计报告完成之前暂时不对新大楼进行表决。
街角的面包店过了五点以后，会把前一天的面包半价出售。
十天之内付款的客户可以享受百分之二的折扣，前提是没有未结清的账单。
乐队把慢板乐章排练了四遍，指挥才对圆号的演奏感到满意。
"""
_RUSSIAN = """
Рано утром на рынке можно недорого купить только что пойманную рыбу и свежие овощи.
В прошлом месяце мы сменили поставщика, потому что товар дважды подряд пришёл с опозданием.
Совещание перенесли на следующий вторник, а место проведения пока не определено.
Бабушка держала пчёл за сараем и каждую осень дарила соседям по банке мёда.
Если температура опустится ниже четырёх градусов, сначала закройте внешний клапан, затем позвоните инженеру.
В библиотеке было тихо, только старик медленно перелистывал страницы атласа.
В стоимость входят завтрак и место на стоянке, бесплатная отмена возможна до вечера накануне приезда.
Исследователи обнаружили, что после сноса плотины река несёт вдвое больше песка, чем раньше.
Она ответила на письмо в тот же день, поблагодарила за фотографии и не упомянула о деньгах.
Если дождь будет не таким сильным, как вчера, я лучше пойду пешком, чем стану ждать автобус.
Комитет решил отложить голосование, пока ревизоры не закончат отчёт о новом здании.
Булочная на углу после пяти часов продаёт вчерашний хлеб за полцены.
"""
_ARABIC = """
في الصباح الباكر يمكنك أن تشتري من السوق السمك الطازج والخضروات بسعر رخيص.
غيّرنا المورّد في الشهر الماضي لأن البضاعة وصلت متأخرة مرتين على التوالي.
تأجل الاجتماع إلى يوم الثلاثاء القادم ولم يتم تحديد المكان حتى الآن.
كانت جدتي تربي النحل خلف البيت وفي كل خريف كانت تعطي الجيران بعض العسل.
إذا انخفضت درجة الحرارة عن أربع درجات فأغلق الصمام الخارجي أولا ثم اتصل بالمهندس المناوب.
كانت المكتبة هادئة ولم يكن فيها سوى رجل عجوز يقلب صفحات الأطلس ببطء.
يشمل الحجز وجبة الإفطار وموقف السيارة ويمكن إلغاؤه مجانا حتى مساء اليوم السابق للوصول.
اكتشف الباحثون أن النهر يحمل الآن ضعف كمية الرمال التي كان يحملها قبل إزالة السد.
أجابت على الرسالة في نفس اليوم وشكرته على الصور ولم تذكر شيئا عن المال.
إذا لم يكن المطر غزيرا كما كان أمس فإنني أفضل المشي على انتظار الحافلة.
قررت اللجنة تأجيل التصويت إلى أن ينتهي المدققون من تقريرهم عن المبنى الجديد.
يبيع المخبز الموجود في زاوية الشارع خبز اليوم السابق بنصف الثمن بعد الساعة الخامسة.
"""

_WORDS = (
    *("account", "order", "shipment", "invoice", "customer", "address", "payment", "region", "warehouse", "return"),
    *("status", "active", "pending", "closed", "refunded", "express", "standard", "north", "south", "Berlin"),
    *("Madrid", "Osaka", "laptop", "keyboard", "monitor", "cable", "adapter"),
)
_PATHS = ("/api/v1/orders", "/api/v1/users/{}", "/health", "/static/app.{}.js", "/login", "/search?q={}&page=2")
_PARTS = ("db.pool", "http.server", "worker-{}", "scheduler", "auth.session", "cache")
_EVENTS = (
    "connection to 10.0.{}.{} closed after {} ms",
    "GET /api/v2/items/{}{} returned {}",
    "retrying job {}-{} (attempt {})",
    "cannot open /var/lib/app/data/{}/{}.sqlite: disk I/O error {}",
    "user u{}{} logged in, session expires in {} s",
)


def _prose(text: str, separator: str = " ") -> Callable[[random.Random], str]:
    sentences = text.strip().splitlines()

    def write(rng: random.Random) -> str:
        return separator.join(separator.join(rng.sample(sentences, len(sentences))) + "\n\n" for _ in range(8))

    return write


def _code(rng: random.Random) -> str:
    modules = [inspect.getsource(module) for module in (shlex, textwrap, json.decoder, base64)]
    rng.shuffle(modules)
    return "".join(source[:1500] for source in modules)


def _record(rng: random.Random) -> dict[str, Any]:
    return {
        "id": rng.randrange(10**6),
        "status": rng.choice(_WORDS),
        "created_at": f"2026-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}T{rng.randrange(24):02}:15:00Z",
        "total": round(rng.random() * 900, 2),
        "items": [{"sku": f"{rng.choice(_WORDS)[:3].upper()}-{rng.randrange(9999)}", "qty": rng.randint(1, 9)}],
        "shipped": rng.random() < 0.5,
        "note": None if rng.random() < 0.5 else " ".join(rng.sample(_WORDS, 5)),
    }


def _json(rng: random.Random) -> str:
    return json.dumps([_record(rng) for _ in range(25)])


def _indented_json(rng: random.Random) -> str:
    return json.dumps([_record(rng) for _ in range(25)], indent=2)


def _logs(rng: random.Random) -> str:
    def line(second: int) -> str:
        event = rng.choice(_EVENTS).format(rng.randrange(256), rng.randrange(256), rng.randrange(900))
        level = rng.choice(("INFO", "INFO", "WARN", "ERROR", "DEBUG"))
        part = rng.choice(_PARTS).format(rng.randrange(8))
        return f"2026-11-30 14:{second // 60:02}:{second % 60:02},{rng.randrange(1000):03} {level:5} [{part}] {event}"

    return "\n".join(map(line, range(60)))


def _access_logs(rng: random.Random) -> str:
    def line(second: int) -> str:
        host = f"192.168.{rng.randrange(256)}.{rng.randrange(256)}"
        path = rng.choice(_PATHS).format(rng.randrange(9999))
        when = f"30/Nov/2026:14:{second // 60:02}:{second % 60:02} +0000"
        return f'{host} - - [{when}] "GET {path} HTTP/1.1" 200 {rng.randrange(9**5)}'

    return "\n".join(map(line, range(60)))


def _table(rng: random.Random) -> str:
    rows = [
        f"| {rng.choice(_WORDS):10} | {rng.choice(_WORDS):10} | {rng.randrange(10_000):6} | {rng.random() * 900:8.2f} |"
        for _ in range(90)
    ]
    return "\n".join(["| product    | city       | amount |    price |", "|---|---|---:|---:|", *rows])


def _csv(rng: random.Random) -> str:
    rows = [
        f"{rng.randrange(10**5)},{rng.choice(_WORDS)},{rng.choice(_WORDS)},{rng.random() * 900:.2f},{n % 3 > 0}"
        for n in range(130)
    ]
    return "\n".join(["id,product,city,price,shipped", *rows])


def _base64(rng: random.Random) -> str:
    return base64.b64encode(rng.randbytes(CHARS)).decode()


def _digits(rng: random.Random) -> str:
    return "".join(rng.choices("0123456789", k=CHARS))


def _numbers(rng: random.Random) -> str:
    return " ".join(str(rng.randrange(10 ** rng.randint(1, 8))) for _ in range(CHARS // 4))


KINDS: dict[str, Callable[[random.Random], str]] = {
    "English": _prose(_ENGLISH),
    "Korean": _prose(_KOREAN),
    "Japanese": _prose(_JAPANESE, ""),
    "Chinese": _prose(_CHINESE, ""),
    "Russian": _prose(_RUSSIAN),
    "Arabic": _prose(_ARABIC),
    "code": _code,
    "JSON": _json,
    "JSON with indents": _indented_json,
    "logs": _logs,
    "access logs": _access_logs,
    "tables": _table,
    "CSV": _csv,
    "base64": _base64,
    "digits": _digits,
    "numbers": _numbers,
}


def sample(kind: str, seed: int = 0, *, chars: int = CHARS) -> str:
    """A text of a kind, at most so many characters long; longer than the kind's own text it repeats."""
    text = KINDS[kind](random.Random(seed))
    return (text * (1 + chars // max(len(text), 1)))[:chars]
