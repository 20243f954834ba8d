// What the bindings of the pool's calls share.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <type_traits>

#include "pool.hpp"

using Address = std::uint64_t;
using Released = nanobind::call_guard<nanobind::gil_scoped_release>;

template <class T>
T* at(Address address) {
    return reinterpret_cast<T*>(address);
}

// Through the pool's tape: the record `c` holds addresses and numbers alone.
template <class C>
void make(headrace::Pool& pool, void (*op)(headrace::Pool&, const C&), std::type_identity_t<C> c) {
    pool.make([=](headrace::Pool& p) { op(p, c); });
}
