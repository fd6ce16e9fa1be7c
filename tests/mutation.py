"""Small faults in the text of a module: made, said in words that outlive a move, and found again.

A mutant is known by its function and by its statement as `ast.unparse` writes it, without the statements inside: lines,
layout, comments and the file may change.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}


@dataclass(frozen=True)
class Mutant:
    """The first six fields stand in the list, and say which mutant it is."""

    file: str
    function: str
    operator: str
    before: str
    after: str
    occurrence: int  # among equal ones of the function
    span: tuple[int, int] = (0, 0)  # of bytes in the file
    text: str = ""
    lines: tuple[int, ...] = ()

    def listed(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("file", "function", "operator", "before", "after", "occurrence")}

    def apply(self, source: str) -> str:
        whole, (start, end) = source.encode(), self.span
        return (whole[:start] + self.text.encode() + whole[end:]).decode()

    def __str__(self) -> str:
        return f"{self.file} {self.function}: {self.before}  ->  {self.after}"


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.expr | ast.stmt, ast.expr | ast.stmt]]:
    """The faults that can be put in the place of a node: the operator, what is replaced, and by what."""
    match node:
        case ast.Compare(ops=[operation]):
            for other in COMPARISONS[type(operation)]:
                yield "comparison", node, ast.Compare(node.left, [other()], node.comparators)
        case ast.BinOp(op=operation) if type(operation) in ARITHMETIC:
            yield "arithmetic", node, ast.BinOp(node.left, ARITHMETIC[type(operation)](), node.right)
        case ast.BoolOp(op=operation):
            yield "boolean", node, ast.BoolOp(ast.Or() if isinstance(operation, ast.And) else ast.And(), node.values)
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield "not", node, node.operand
        case ast.Constant(value=bool(value)):
            yield "constant", node, ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield "constant", node, ast.Constant(value + 1)
        case ast.If() | ast.While() | ast.IfExp():
            yield "condition", node.test, ast.UnaryOp(ast.Not(), node.test)
        case ast.Return(value=ast.expr()) if ast.unparse(node) != "return None":
            yield "return", node, ast.Return(ast.Constant(None))
        case (
            ast.Expr(value=ast.Call())
            | ast.AugAssign()
            | ast.Assign(targets=[ast.Attribute() | ast.Subscript()])
            | ast.Raise()
            | ast.Continue()
            | ast.Break()
        ):
            yield "statement", node, ast.Pass()


def _head(statement: ast.stmt) -> ast.stmt:
    """A statement without the statements in it."""
    head = copy.copy(statement)
    for name in ("body", "orelse", "handlers", "finalbody", "cases"):
        if hasattr(head, name):
            setattr(head, name, [ast.Pass()] if name == "body" else [])
    return head


def mutants(file: str, source: str) -> list[Mutant]:
    """All mutants of what stands in the functions of a module."""
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: list[Mutant] = []
    seen: Counter[tuple[str, str, str]] = Counter()

    def visit(node: ast.AST, names: tuple[str, ...], inside: bool, statement: ast.stmt | None) -> None:
        if isinstance(node, ast.JoinedStr):  # Python 3.11 does not know where the parts of an f-string stand
            return
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for child in node.body:
                visit(child, (*names, node.name), inside or not isinstance(node, ast.ClassDef), None)
            return
        statement = node if isinstance(node, ast.stmt) else statement
        if inside and statement is not None:
            head = _head(statement)
            before = ast.unparse(head).removesuffix("\n    pass")
            for operator, target, new in _changes(node):
                changed = new if target is statement else copy.deepcopy(head, {id(target): new})
                after = ast.unparse(changed).removesuffix("\n    pass")
                if after == before:  # it stands in a part of the statement that the head leaves out: a pattern, say
                    continue
                key = (".".join(names), before, after)
                text = f"({ast.unparse(new)})" if isinstance(new, ast.expr) else ast.unparse(new)
                last = target.end_lineno or target.lineno
                end = starts[last - 1] + (target.end_col_offset or 0)
                span = (starts[target.lineno - 1] + target.col_offset, end)
                lines = (statement.lineno, *range(target.lineno, last + 1))
                found.append(Mutant(file, key[0], operator, before, after, seen[key], span, text, lines))
                seen[key] += 1
        for field, value in ast.iter_fields(node):
            if field != "annotation":
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        visit(child, names, inside, statement)

    visit(ast.parse(source), (), False, None)
    return found


def find(listed: Mutant, candidates: Iterable[Mutant]) -> Mutant | None:
    """A mutant of the list as it stands now: in its file, or in another one, or in a function of another name."""
    same = [one for one in candidates if (one.before, one.after) == (listed.before, listed.after)]
    named = [one for one in same if (one.function, one.occurrence) == (listed.function, listed.occurrence)]
    for fitting in ([one for one in named if one.file == listed.file], named, same):
        if len(fitting) == 1:
            return fitting[0]
    return None
