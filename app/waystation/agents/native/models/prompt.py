"""What the demo model can make out in a prompt: numbers, quoted texts, names, an arithmetic expression; and how these fill a
JSON Schema. Plain rules; the same prompt always gives the same values."""

import re
from typing import Any

_STOP_WORDS = (
    "a an and are as at be by can current do does for from get give how i in is it make me my of on or please "
    "tell that the this to use what when where which who why with you your"
)
STOP_WORDS = frozenset(_STOP_WORDS.split())
_QUOTED = re.compile(r"\"([^\"]+)\"|“([^”]+)”|'([^']+)'(?!\w)|`([^`]+)`")
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w.]*\w)")
_WORDED = (
    (re.compile(r"(?<=\d)\s*(?:times|multiplied by|×|x)\s*(?=[\d(])", re.I), "*"),
    (re.compile(r"(?<=\d)\s*(?:divided by|over|÷)\s*(?=[\d(])", re.I), "/"),
    (re.compile(r"(?<=\d)\s*plus\s*(?=[\d(])", re.I), "+"),
    (re.compile(r"(?<=\d)\s*minus\s*(?=[\d(])", re.I), "-"),
    (re.compile(r"(?<=\d)\s*(?:to the power of|\^)\s*(?=[\d(])", re.I), "**"),
)
_EXPRESSION = re.compile(r"[\d(.][\d\s.()+\-*/%]*[\d)]")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}|\d{1,2}/\d{1,2}/\d{2,4}")
_ZONE = re.compile(r"\b(?:[A-Z][A-Za-z]+/[A-Z][A-Za-z_]+(?:/[A-Z][A-Za-z_]+)?|UTC)\b")
_EMAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_PATH = re.compile(r"(?<![\w@])[\w./~-]*[\w-]+\.[A-Za-z]\w{0,5}\b")
_NAME = re.compile(r"(?<=[\w,] )[A-Z][\w'-]*(?: [A-Z][\w'-]*)*")
_WORD = re.compile(r"[^\W_]+")


class Prompt:
    """A prompt and what was found in it. Each number, quote and name is given out once."""

    def __init__(self, text: str) -> None:
        self.text = text
        signs = _with_signs(text)
        self.words = [word.lower() for word in _WORD.findall(signs)]
        self.expression = _expression(signs)
        self._numbers: list[str] = _NUMBER.findall(text)
        self._quotes: list[str] = [next(part for part in match if part) for match in _QUOTED.findall(text)]
        self._names: list[str] = _NAME.findall(text)

    @property
    def said(self) -> frozenset[str]:
        """The words that mean something."""
        return frozenset(self.words) - STOP_WORDS

    def filled(self, schema: dict[str, Any]) -> dict[str, Any] | None:
        """Arguments for an object schema: None if a required one can't be found in the prompt."""
        values: dict[str, Any] = {}
        required = schema.get("required", ())
        # Those that the prompt names take their numbers first: in "3 dice with 20 sides" the 20 is not the count.
        parts = sorted(schema.get("properties", {}).items(), key=lambda item: self._named_number(item[0]) is None)
        for name, part in parts:
            value = self._value(name, part, is_required=name in required)
            if value is not None:
                values[name] = value
            elif name in required:
                return None
        return values

    def example(self, schema: dict[str, Any], name: str = "") -> Any:
        """A value that fits a schema: found in the prompt where possible, else a placeholder."""
        if schema.get("type") == "object":
            return {key: self.example(part, key) for key, part in schema.get("properties", {}).items()}
        found = self._value(name, schema, is_required=True)
        if found is not None:
            return found
        match schema.get("type"):
            case "array":
                return []
            case "integer" | "number":
                return schema.get("minimum", 0)
            case "boolean":
                return False
            case "null":
                return None
            case _:
                return schema.get("default", f"demo {name}".strip())

    def _value(self, name: str, schema: dict[str, Any], *, is_required: bool) -> Any:
        if options := schema.get("enum"):
            return next((option for option in options if str(option).lower() in self.words), options[0] if is_required else None)
        if "const" in schema:
            return schema["const"]
        match _type_of(schema):
            case "integer":
                return self._number(name, whole=True)
            case "number":
                return self._number(name, whole=False)
            case "boolean":
                return True if is_required or name.lower() in self.words else None
            case "array":
                return self._numbers_or_quotes(schema) or None
            case "string":
                return self._string(name.lower(), is_required=is_required)
            case _:
                return None

    def _number(self, name: str, *, whole: bool) -> int | float | None:
        """The number that stands next to the parameter's name ("20 sides"), else the next unused one."""
        text = self._named_number(name)
        if text is None:
            text = next((number for number in self._numbers if not whole or "." not in number), None)
        if text is None or (whole and "." in text):
            return None
        if text in self._numbers:
            self._numbers.remove(text)
        return int(text) if "." not in text else float(text)

    def _named_number(self, name: str) -> str | None:
        number, stem = r"(-?\d+(?:\.\d+)?)", _stem(name)
        near = re.search(rf"{number}[\s-]*{stem}|{stem}\w*\s*(?:=|:|of|is)?\s*{number}", self.text, re.I)
        return next((group for group in near.groups() if group), None) if near else None

    def _numbers_or_quotes(self, schema: dict[str, Any]) -> list[Any]:
        if _type_of(schema.get("items", {})) in ("integer", "number"):
            numbers, self._numbers = self._numbers, []
            return [float(number) if "." in number else int(number) for number in numbers]
        quotes, self._quotes = self._quotes, []
        return list(quotes)

    def _string(self, name: str, *, is_required: bool) -> str | None:
        for words, pattern in (
            (("zone", "timezone", "tz"), _ZONE),
            (("to", "email", "mail", "recipient"), _EMAIL),
            (("path", "file", "filename"), _PATH),
        ):
            if name in words and (found := pattern.search(self.text)):
                return str(found[0])
        if name == "expression":
            return self.expression
        if named := re.search(rf"\b{re.escape(name)}\s*[=:]\s*(\S+)", self.text, re.I):
            return str(named[1]).strip("\"'`,;.")
        if self._quotes:
            return self._quotes.pop(0)
        if self._names and is_required:
            return self._names.pop(0)
        if is_required and name in ("query", "question", "text", "message", "prompt", "input", "topic"):
            return self.text
        return None


def _type_of(schema: dict[str, Any]) -> str:
    kind = schema.get("type")
    if isinstance(kind, str):
        return kind
    kinds = [_type_of(part) for part in schema.get("anyOf", ())]
    return next((kind for kind in kinds if kind != "null"), "string")


def _stem(name: str) -> str:
    """A name without its plural s, for a look-up in a text."""
    return re.escape(name.lower().rstrip("s") or name)


def _with_signs(text: str) -> str:
    """The text with spelled-out operators between numbers as signs."""
    for pattern, sign in _WORDED:
        text = pattern.sub(sign, text)
    return text


def _expression(text: str) -> str | None:
    """The longest arithmetic expression with at least one operator, or None. Dates are not arithmetic."""
    found = [match.strip() for match in _EXPRESSION.findall(_DATE.sub(" ", text))]
    real = [part for part in found if re.search(r"[\d)]\s*[+\-*/%]", part) and part.count("(") == part.count(")")]
    return max(real, key=len, default=None)
