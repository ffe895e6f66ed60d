#pragma once

// The handler of ffi.cpp, as XLA registers it.
void* dart_search_handler();
