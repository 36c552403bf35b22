"""Errors of custom code: those that become refusals, and those that are raised unchanged."""

import pytest

from fedaudit.core.errors import BadInput, Unsupported, custom_code


def refusal(error: Exception, described: str) -> BadInput:
    return BadInput(f"the network cannot be run ({described})")


def test_errors_of_custom_code_are_reported_with_type_and_message() -> None:
    message = r"cannot be run \(KeyError: 'a b'\)"
    with pytest.raises(BadInput, match=message) as found, custom_code(refusal):
        raise KeyError("a  b")
    assert isinstance(found.value.__cause__, KeyError)


@pytest.mark.parametrize(
    "error",
    [Unsupported("no such kernel"), MemoryError("full"), RuntimeError("CUDA out of memory")],
)
def test_errors_of_fedaudit_and_of_memory_pass_unchanged(error: Exception) -> None:
    with pytest.raises(type(error)) as found, custom_code(refusal):
        raise error
    assert found.value is error


def test_an_error_without_a_replacement_passes_unchanged() -> None:
    with pytest.raises(ZeroDivisionError), custom_code(lambda error, described: None):
        raise ZeroDivisionError
