// A test is a function that calls CHECK; main returns the number of failures.
#pragma once

#include <cstdio>

inline int failures = 0;

#define CHECK(condition, ...)                                           \
    do {                                                                \
        if (!(condition)) {                                             \
            ++failures;                                                 \
            std::printf("%s:%d: %s: ", __FILE__, __LINE__, #condition); \
            std::printf(" " __VA_ARGS__);                               \
            std::printf("\n");                                          \
        }                                                               \
    } while (false)
