#pragma once

// The handlers defined in ffi.cpp and ffi_product.cpp, in the form that XLA registers.
void* dart_search_handler();
void* dart_product_handler();
