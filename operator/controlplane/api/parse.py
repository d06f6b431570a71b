"""A document into a SplitwiseDeployment, or one error that names every problem and what to write instead."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from controlplane.api.deployment import KIND, SplitwiseDeployment

_Where = tuple[int | str, ...]


class InvalidDeployment(ValueError):
    """The object is not one we can serve; `problems` are (path, value, advice), one for each mistake."""

    def __init__(self, problems: Sequence[tuple[str, str, str]], source: str = "") -> None:
        self.problems = tuple(problems)
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        lines = [f"{source or KIND}: {count}"]
        for path, value, advice in problems:
            lines += [f"  {path}: {value}" if value else f"  {path}", f"    {advice}"]
        super().__init__("\n".join(lines))


def parse(document: Any, *, source: str = "") -> SplitwiseDeployment:
    """The deployment in a document as YAML or the API server gives it.

    source: names the document in errors, such as a file name. Raises InvalidDeployment.
    """
    try:
        return SplitwiseDeployment.model_validate(document)
    except ValidationError as error:
        problems = [problem for detail in error.errors() for problem in _problems(detail, document)]
        raise InvalidDeployment(problems, source) from None


def read(path: Path) -> SplitwiseDeployment:
    """The one SplitwiseDeployment in a YAML file. Raises InvalidDeployment."""
    try:
        documents = [each for each in yaml.load_all(path.read_text(), _OneOfEach) if each is not None]
    except OSError as error:
        raise InvalidDeployment([("the file", "", error.strerror or str(error))], str(path)) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidDeployment([("the file", "", f"not YAML: {error}")], str(path)) from None
    ours = [each for each in documents if isinstance(each, Mapping) and each.get("kind") == KIND]
    if len(ours) > 1:
        advice = f"holds {len(ours)} objects of kind {KIND}; leave one in the file"
        raise InvalidDeployment([("the file", "", advice)], str(path))
    return parse((ours or documents or [None])[0], source=str(path))


class _OneOfEach(yaml.SafeLoader):
    """YAML in which a key written twice is a mistake, where others let the last one win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if str(key.value) in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"{key.value} is written twice", problem_mark=key.start_mark
                )
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def _problems(detail: ErrorDetails, document: Any) -> Iterator[tuple[str, str, str]]:
    if detail["type"] == "rule":
        for rule in detail["ctx"]["broken"]:
            where = (*detail["loc"], *(rule.field.split(".") if rule.field else ()))
            yield _path(where), _shown(_at(document, where)), rule.message
    elif detail["type"] == "missing":
        yield _path(detail["loc"]), "", f"missing; {_wanted(detail['loc'])}"
    else:
        yield _path(detail["loc"]), _shown(detail["input"]), _advice(detail)


_ADVICE = {
    "model_type": "write a mapping: fields with values, indented below",
    "dict_type": "write a mapping: fields with values, indented below",
    "tuple_type": "write a list",
    "int_type": "write a whole number",
    "int_from_float": "write a whole number",
    "bool_type": "write true or false",
    "string_type": 'write text; put it in quotes ("...") if it looks like a number',
}


def _advice(detail: ErrorDetails) -> str:
    kind = detail["type"]
    if kind in _ADVICE:
        return _ADVICE[kind]
    if kind == "extra_forbidden":
        return _unknown(detail["loc"])
    if kind == "literal_error":
        return f"write {detail['ctx']['expected']}"
    if kind == "string_pattern_mismatch":
        return "holds a character that is not allowed; " + _wanted(detail["loc"])
    return detail["msg"].replace("Input should be ", "write ")


def _unknown(where: _Where) -> str:
    known = list(_fields(_model(where[:-1])))
    close = get_close_matches(str(where[-1]), known, n=1, cutoff=0.6)
    if close:
        return f"unknown field; did you mean {close[0]}?"
    return f"unknown field; known here: {', '.join(known)}"


def _wanted(where: _Where) -> str:
    field = _fields(_model(where[:-1])).get(str(where[-1]))
    if where == ("apiVersion",):
        return "write splitwise.dev/v1alpha1"
    if where == ("kind",):
        return f"write {KIND}"
    if where == ("metadata", "name"):
        return "write lower-case letters, digits and dashes"
    return f"it is: {field[1]}" if field and field[1] else "write it"


def _fields(model: type[BaseModel]) -> dict[str, tuple[Any, str]]:
    """The fields of a model by the name written in YAML: type and description."""
    return {
        field.alias or name: (field.annotation, field.description or "")
        for name, field in model.model_fields.items()
    }


def _model(where: _Where) -> type[BaseModel]:
    """The model at a path; the nearest one above it where the path leaves the models."""
    model: type[BaseModel] = SplitwiseDeployment
    for step in where:
        annotation = _fields(model).get(str(step), (None, ""))[0]
        for kind in (annotation, *get_args(annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                model = kind
    return model


def _path(where: _Where) -> str:
    return ".".join(map(str, where)) or "the document"


def _at(document: Any, where: _Where) -> Any:
    for step in where:
        if isinstance(document, Mapping):
            document = document.get(step)
        elif isinstance(document, Sequence) and isinstance(step, int):
            document = document[step]
        else:
            return None
    return document


def _shown(value: Any) -> str:
    """A value on one line, in YAML's flow style; nothing for a long one."""
    if value is None:
        return ""
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False).strip()
    text = text.removesuffix("...").strip()
    return text if len(text) <= 100 else text[:97] + "..."
