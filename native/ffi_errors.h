// How XLA's foreign functions report failures.
#pragma once

#include <exception>
#include <stdexcept>

#include "xla/ffi/api/ffi.h"

// Calls `work`, and returns what it throws as an error: XLA knows no exceptions.
template <class Work>
xla::ffi::Error error_of(const Work& work) {
  try {
    work();
  } catch (const std::invalid_argument& error) {
    return xla::ffi::Error::InvalidArgument(error.what());
  } catch (const std::exception& error) {
    return xla::ffi::Error::Internal(error.what());
  }
  return xla::ffi::Error::Success();
}
