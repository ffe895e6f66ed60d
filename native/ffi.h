#pragma once

// The handlers defined in ffi.cpp, ffi_product.cpp and ffi_attention.cpp, in the form that XLA
// registers.
void* dart_search_handler();
void* dart_product_handler();
void* dart_heads_handler();
void* dart_attention_handler();
