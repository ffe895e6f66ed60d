// Declarations that the files of the Python bindings share.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include "dart/ngram_model.h"

// An n-gram model together with the bytes it reads.
struct PyNgramModel {
  PyNgramModel(pybind11::array array, bool checksums);

  pybind11::array file;
  dart::NgramModel model;
};

// Each adds its classes and functions to the module. The search refers to the n-gram model, which
// must be bound first.
void bind_ngram(pybind11::module_& m);
void bind_search(pybind11::module_& m);
void bind_text(pybind11::module_& m);
void bind_cpu(pybind11::module_& m);

// Sets the Python function that programs call (ffi_python.cpp).
void call_in_programs(pybind11::object new_function);
