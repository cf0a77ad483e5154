# ruff: noqa: RUF001 - the punctuation of other scripts is meant
"""
Words that often go with a sentence that binds, or with one that does not, in some languages.

They only add to what is found without them: nothing here is needed for a sentence to be quoted, in any language. Words
are kept by what they say, each kind on lines of one language, so that a language is a line more.
"""

import re
from typing import Final


def _any_of(*words: str, unspaced: str = "") -> re.Pattern[str]:
    """A pattern for whole words, and for words of languages that are written without blanks or with endings."""
    spaced = rf"(?<![^\W_])(?:{'|'.join(words)})(?![^\W_])"
    return re.compile(f"{spaced}|{unspaced}" if unspaced else spaced, re.IGNORECASE)


#: What must be, must not be, how much at most, until when, for which purpose; and all that holds for everything.
RULES: Final = _any_of(
    "must|mustn'?t|never|always|only|don'?t|do not|cannot|can'?t|won't|should|shouldn'?t|shall"
    r"|no more than|at (?:the )?most|at (?:the )?least|or less|up to|limit\w*|max|maximum|min|minimum"
    r"|until|deadline|due|no later than|by the end|prefer\w*|rather|i want|we want|would like|i'd like"
    "|want you to|make sure|ensure|remember|note that|goal|aim|aiming|target|decided|settled|agreed"
    "|let'?s|go with|avoid|keep|required?|mandatory|forbidden|prohibited|allowed|except|unless"
    "|from now on|as of|budget|under|below|above|over|fewer|without|instead of|nothing|nobody|no one|none"
    "|anything|anyone|anybody|everything|everyone|whoever|whatever|whenever|any|every|each time|in doubt"
    "|treat|counts?",
    "muss|müssen|musst|darf|darfst|dürfen|nie|niemals|immer|nur|soll|sollen|sollte|höchstens|mindestens"
    r"|maximal|bis|spätestens|frist|ziel|stichtag|bevorzuge\w*|lieber|am liebsten|möchte\w*|will|wollen"
    r"|brauche\w*|entschieden|einigt|geeinigt|verboten|erlaubt|achte|merke?|ab sofort|künftig|statt|grenze"
    r"|budget|unter|über|ohne|nichts|niemand|keiner|alles|jede\w*|wer|sobald|falls|wenn|ausschließlich"
    "|außer|im zweifel|gilt|gelten|zählt",
    "debe|deben|debes|tiene que|tienen que|hay que|nunca|jamás|siempre|s[oó]lo|solamente|únicamente"
    "|(?:como )?(?:máximo|mucho)|mínimo|límite|hasta|plazo|objetivo|meta|prefiero|preferimos|quiero"
    r"|queremos|queda|decidi\w*|decidimos|acordado|prohibido|obligatorio|recuerda|antes de\w*|a partir de"
    "|en vez|presupuesto|sin|nada|nadie|ningun[oa]?|todo|toda|cada|quien|si|cuando|menos de|más de"
    "|por debajo|por encima|en caso de duda|excepto|salvo",
    "doit|doivent|dois|devez|faut|jamais|toujours|seulement|uniquement|maximum|minimum|limite|avant"
    r"|jusqu'\w+|délai|échéance|objectif|but|préfère|préférons|veux|voulons|voudrais|décidé|retenu|choisi"
    r"|interdit|obligatoire|rappelle\w*|au plus|au moins|désormais|dorénavant|budget|sans|rien|personne"
    r"|aucun\w*|tout|toute|chaque|quiconque|quel que soit|dès que|si|lorsque|moins de|plus de|au-delà"
    "|en dessous|en cas de doute|sauf|que",
    "deve|devono|devem|mai|sempre|soltanto|entro|massimo|apenas|até|moet|moeten|nooit|altijd|alleen|uiterlijk",
    unspaced=(
        "하지 ?마|지 ?마[세요십라]|말아|말고|마세요|마십시오|반드시|꼭|항상|늘|절대|무조건|까지|이하|이상"
        "|이내|안쪽|안으로|최대|최소|많아도|적어도|넘[지으는기]|못 ?하|해야|어야|아야|여야|이어야|목표"
        "|기한|마감|선호|원[해하]|바라|결정|정했|하기로|금지|안 ?[돼됩되]|않[습는고기]|기로 (?:해|합|하)"
        "|기억|예산|제한|한도|대신|부터|앞으로|모든|모두|누[가구]|아무|전부|만 |만요|뿐|[하으]면|않으면"
        "|전에는|이전|아래로|위로|빼고|いけない|いけません|ならない|なりません|必ず|絶対|常に|いつも|まで"
        "|以下|以上|以内|未満|最大|最小|最低|べき|目標|目指|期限|締め?切|好み|決め|決ま|禁止|しないで"
        "|ないで|ません|だけ|のみ|しか|上限|下限|予算|覚えて|とします|ことにし|今後|これから|すべて|全て"
        "|誰|どんな|場合|なら|たら|れば|前に|必须|必須|不要|不得|不能|不可|不许|不准|禁止|务必|務必|始终"
        "|总是|一律|绝不|绝对|最多|至少|不超过|超过|之前|以前|以内|以下|以上|目标|截止|期限|决定|定了"
        "|偏好|只能|只用|只有|只读|只要|仅|限制|上限|预算|记住|千万|应该|应当|必|凡是|所有|任何|不管|无论"
        r"|一旦|如果|要是|今后|从现在|别|改为|算数|得在|宁愿|要先|долж[ен]\w*|нельзя|никогда|всегда|только"
        r"|не более|максимум|минимум|срок|цель|предпочита\w*|нужно|надо|если"
    ),
)

#: What asks for something, denies something, or is about one's own affairs: it may bind, but so may a passing request.
REQUESTS: Final = _any_of(
    "please|my|our|not|use|need|needs|we'll|we will|has to|have to|had better|is to|are to|before|by|when|if",
    r"bitte|mein\w*|unser\w*|nicht|kein\w*|nimm|nutze\w*|verwende\w*|vor",
    r"por favor|mis?|nuestr[oa]s?|no|usa|utiliza|necesit\w+|va|van",
    r"s'il (?:te|vous) plaît|mon|ma|mes|notre|nos|ne|n'\w+|pas|utilise\w*|prends|besoin",
    unspaced=(
        "주세요|주십시오|하세요|하십시오|[으]?세요|우리|저희|제 |저는|좋[아고]|싫|싶|ください|下さい"
        "|お願い|こと。|私|当社|うち|弊社|にします|好き|嫌|たい|ない|请|請|我们|咱们|我的|我[不要想喜]|要"
        "|希望|喜欢|不|пожалуйста"
    ),
)

#: What was, and what will soon be over: talk about yesterday, this morning, the weekend.
TALES: Final = _any_of(
    "yesterday|this morning|this afternoon|today|tonight|last (?:night|week|weekend|month|year)|weekend"
    "|just|was|were|had|got|told|saw|went|stayed|came|mentioned|said|looked|seems?|supposed|ago|now it'?s"
    "|again",
    r"gestern|heute|heute (?:früh|morgen|abend)|vorhin|gerade|eben|letzte\w*|wochenende|war|waren|hatte"
    r"|hatten|kam|ging|erzählt\w*|gesagt|gesehen|wieder|soeben|schon",
    "ayer|hoy|esta mañana|esta tarde|anoche|acabo|acaba|pasad[oa]|fin de semana|era|fue|estaba|estuve"
    "|tuvimos|tuve|dijo|contó|vi|hace|otra vez|había|llegó|llovió",
    "hier|aujourd'hui|ce matin|ce soir|cet après-midi|tout à l'heure|dernier|dernière|week-end|était"
    "|étais|avait|j'ai|viens de|vient de|a dit|m'a dit|on a eu|nous avons eu|il y a|encore|reçu|vu",
    unspaced=(
        "어제|오늘|아까|방금|주말|지난|았어요|었어요|했어요|았는데|었는데|했는데|[았었했]습니다|더라|네요"
        "|昨日|今日|今朝|昨夜|さっき|先週|週末|ました|でした|ていました|ですね|そうです|たところ"
        "|たら、また|昨天|今天|刚才|刚刚|刚收|刚|昨晚|上周|周末|早上|说|听说|了。|了，|结果又|вчера"
        "|сегодня|был[аои]?"
    ),
)

#: What people say to be polite.
COURTESIES: Final = _any_of(
    "thanks?|thank you|hi|hello|hey|good (?:morning|evening|night)|great|nice|cool|awesome|perfect|okay"
    r"|ok|yes|yep|sure|haha\w*|ah|hm+",
    r"danke\w*|hallo|guten|super|prima|ja|genau|gracias|hola|buenos|buenas|genial|vale|perfecto|merci"
    "|bonjour|salut|parfait",
    "obrigad[oa]|ciao|grazie",
    unspaced=(
        "감사|고마|안녕|ㅋㅋ|ㅎㅎ|네[,.! ]|ありがと|こんにちは|おはよう|どうも|なるほど|了解|谢谢|你好"
        "|早上好|哈哈|好的|不错"
    ),
)

#: What takes back what was said before; the rest of the sentence is as it was.
CORRECTIONS: Final = _any_of(
    "actually|correction|update|sorry|now|instead|new|from now on|no wait|wait|jetzt|nun|neu|korrektur"
    "|doch|ab sofort|ahora|corrección|mejor|maintenant|désormais|finalement|plutôt",
    unspaced="이제|정정|수정|아니|やっぱり|やはり|訂正|今後|更正|现在|改一下",
)

#: Words of a language in which every noun has a capital, so that a capital tells no name.
CAPITAL_NOUNS: Final = _any_of(
    "der|die|das|den|dem|des|ein|eine|einen|einem|einer|und|ist|sind|ich|wir|im|am|zum|zur|nicht|auf|mit",
)
