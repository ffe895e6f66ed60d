// How the core's functions become XLA's foreign functions.
#pragma once

#include <exception>
#include <initializer_list>
#include <map>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "xla/ffi/api/ffi.h"

// The functions of all ffi_*.cpp, in the form that XLA registers, by their names in programs.
std::map<std::string, XLA_FFI_Handler*>& ffi_handlers();

namespace binding {

namespace ffi = xla::ffi;

// Adds a function's parameters to its binding by their types: buffers are arguments or results, and
// numbers, texts and spans attributes, whose names come in the order of the parameters.
template <class... Parameters>
struct Add;

template <>
struct Add<> {
  template <class Binding, class Function>
  static auto to(Binding&& all, const char* const*, Function function) {
    return std::move(all).To(function);
  }
};

template <class First, class... Rest>
struct Add<First, Rest...> {
  template <class Binding, class Function>
  static auto to(Binding&& before, const char* const* names, Function function) {
    const auto rest = [&](auto&& binding, const char* const* left) {
      return Add<Rest...>::to(std::move(binding), left, function);
    };
    if constexpr (ffi::internal::is_arg_binding_v<First>) {
      return rest(std::move(before).template Arg<First>(), names);
    } else if constexpr (ffi::internal::is_ret_binding_v<First>) {
      return rest(std::move(before).template Ret<typename ffi::RetBinding<First>::Ret>(), names);
    } else if constexpr (std::is_same_v<First, ffi::RemainingArgs>) {
      return rest(std::move(before).RemainingArgs(), names);
    } else if constexpr (std::is_same_v<First, ffi::RemainingRets>) {
      return rest(std::move(before).RemainingRets(), names);
    } else if constexpr (std::is_same_v<First, ffi::ThreadPool>) {
      return rest(std::move(before).template Ctx<First>(), names);
    } else {
      return rest(std::move(before).template Attr<First>(*names), names + 1);
    }
  }
};

// A function bound so that what it throws is an error: XLA knows no exceptions.
template <class... Parameters>
auto bind(ffi::Error (*function)(Parameters...), std::initializer_list<const char*> attributes) {
  return Add<Parameters...>::to(
      ffi::Ffi::Bind(), attributes.begin(), [function](Parameters... parameters) {
        try {
          return function(std::move(parameters)...);
        } catch (const std::invalid_argument& error) {
          return ffi::Error::InvalidArgument(error.what());
        } catch (const std::exception& error) {
          return ffi::Error::Internal(error.what());
        }
      });
}

}  // namespace binding

// Adds a function to the handlers; the names of its attributes follow.
#define DART_FFI_HANDLER(name, function, ...)                                         \
  [[maybe_unused]] static const bool name##_is_there =                                \
      ffi_handlers().emplace(#name, +[](XLA_FFI_CallFrame* frame) {                   \
        static auto* const handler = binding::bind(function, {__VA_ARGS__}).release(); \
        return handler->Call(frame);                                                  \
      }).second
