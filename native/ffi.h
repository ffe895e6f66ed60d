#pragma once

// The handlers defined in ffi.cpp and ffi_*.cpp, in the form that XLA registers.
void* dart_search_handler();
void* dart_noise_handler();
void* dart_draw_handler();
void* dart_product_handler();
void* dart_take_tiles_handler();
void* dart_layers_handler();
void* dart_draft_layer_handler();
void* dart_heads_handler();
void* dart_attention_handler();
void* dart_largest_handler();
void* dart_append_handler();
void* dart_copy_page_handler();
void* dart_unwritten_handler();
void* dart_look_up_handler();
void* dart_python_handler();
void* dart_clock_handler();
