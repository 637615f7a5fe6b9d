"""The one tool: arithmetic on whole numbers, read as a syntax tree, so that a model's text is never executed."""

import ast
import operator

from ludus.compat.verl.tools.function_tool import function_tool

OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
LONGEST = 60  # characters: no problem needs more, and products of that length stay small


@function_tool
async def calculate(expression: str) -> str:
    """The value of an arithmetic expression with +, -, * and parentheses.

    Args:
        expression: such as 3 * (4 + 5)
    """
    if len(expression) > LONGEST:
        return f"error: the expression has {len(expression)} characters; at most {LONGEST} are read"
    try:
        return str(value(ast.parse(expression.strip(), mode="eval").body))
    except (SyntaxError, ValueError, RecursionError) as error:
        return f"error: {error}"


def value(node):
    """The value of a syntax tree of whole numbers. Raises ValueError for anything else."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
        return OPERATIONS[type(node.op)](value(node.left), value(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -value(node.operand)
    raise ValueError("only whole numbers, +, -, * and parentheses are read")
