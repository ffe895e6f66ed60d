#pragma once

// The handler defined in ffi.cpp, in the form that XLA registers.
void* dart_search_handler();
