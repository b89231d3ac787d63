"""Arrays and functions across the border to compiled code as addresses, in one array of integers.

numba unpacks each array of an argument anew at every call from Python, and looks a function argument's type up: some
250 microseconds for the arrays of a cache and the four functions of a policy. A handle is made once; a call then
passes one small array. Whoever makes a handle keeps the arrays and the functions alive as long as it is in use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.experimental.function_type import _get_jit_address, _get_wrapper_address
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

Handle = npt.NDArray[np.int64]


def array_addresses(arrays: Iterable[npt.NDArray[Any]]) -> list[int]:
    """Address and number of rows of each array, all C-contiguous."""
    words: list[int] = []
    for array in arrays:
        if not array.flags.c_contiguous:
            raise ValueError("a handle needs C-contiguous arrays")
        words += [array.ctypes.data, len(array)]
    return words


def function_addresses(function: Any, signature: Any) -> list[int]:
    """The two addresses under which compiled code calls a function: by C's convention and by numba's."""
    return [_get_wrapper_address(function, signature), _get_jit_address(function, signature)]


def array_at(array_type: types.Array, columns: int = 0) -> Callable[[int, int], Any]:
    """For compiled code: ``array(address, rows)`` as `array_type`, of (rows,) or (rows, `columns`)."""

    @intrinsic  # type: ignore[untyped-decorator]
    def array(typing_context: Any, address: Any, rows: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            word = context.get_value_type(types.intp)
            item_type = context.get_data_type(array_type.dtype)
            size = context.get_abi_sizeof(item_type)
            shape, strides = [arguments[1]], [word(size * max(columns, 1))]
            if columns:
                shape, strides = [*shape, word(columns)], [*strides, word(size)]
            result = make_array(array_type)(context, builder)
            populate_array(
                result,
                data=builder.inttoptr(arguments[0], item_type.as_pointer()),
                shape=shape,
                strides=strides,
                itemsize=word(size),
                meminfo=None,
            )
            return result._getvalue()

        return array_type(types.int64, types.int64), build

    return array  # type: ignore[no-any-return]


@intrinsic  # type: ignore[untyped-decorator]
def address_of(typing_context: Any, array: Any) -> Any:
    """For compiled code: the address of an array's first row."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        struct = make_array(signature.args[0])(context, builder, arguments[0])
        return builder.ptrtoint(struct.data, context.get_value_type(types.int64))

    return types.int64(array), build


@intrinsic  # type: ignore[untyped-decorator]
def prefetch(typing_context: Any, array: Any, row: Any) -> Any:
    """For compiled code: fetch a row of a one-dimensional array into the caches; any row may be asked for."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
        fetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        struct = make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.bitcast(builder.gep(struct.data, [arguments[1]]), byte)
        builder.call(fetch, [place, flag(0), flag(3), flag(1)])  # to read, into all caches, data
        return context.get_dummy_value()

    return types.void(array, types.int64), build


@intrinsic  # type: ignore[untyped-decorator]
def square_root(typing_context: Any, value: Any) -> Any:
    """For compiled code: `math.sqrt` as an instruction, where numba calls a function unless it makes vectors."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.call(builder.module.declare_intrinsic("llvm.sqrt", [arguments[0].type]), arguments)

    return types.float64(types.float64), build


def function_at(prototype: Any) -> Callable[[int, int], Any]:
    """For compiled code: the function of this signature at the two addresses."""
    function_type = types.FunctionType(prototype)

    @intrinsic  # type: ignore[untyped-decorator]
    def function(typing_context: Any, wrapper: Any, jitted: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = context.get_value_type(types.voidptr)
            result = cgutils.create_struct_proxy(function_type)(context, builder)
            result.c_addr = builder.inttoptr(arguments[0], pointer)
            result.py_addr = pointer(None)
            result.jit_addr = builder.inttoptr(arguments[1], pointer)
            return result._getvalue()

        return function_type(types.int64, types.int64), build

    return function  # type: ignore[no-any-return]
