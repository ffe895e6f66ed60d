// Checks for the tests, which also work in Release builds.
#pragma once

#include <cstdio>

inline int failures = 0;

// Reports the expression and continues.
#define CHECK(condition)                                                       \
  do {                                                                         \
    if (!(condition)) {                                                        \
      std::printf("%s:%d: failed: %s\n", __FILE__, __LINE__, #condition);      \
      ++failures;                                                              \
    }                                                                          \
  } while (false)

#define CHECK_THROWS(expression, exception)                                    \
  do {                                                                         \
    bool thrown = false;                                                       \
    try {                                                                      \
      (void)(expression);                                                      \
    } catch (const exception&) {                                               \
      thrown = true;                                                           \
    }                                                                          \
    if (!thrown) {                                                             \
      std::printf("%s:%d: no %s from %s\n", __FILE__, __LINE__, #exception,    \
                  #expression);                                                \
      ++failures;                                                              \
    }                                                                          \
  } while (false)
