// cuBLASLt's functions, those of them that are used here, as calls into a library that is loaded
// when the first one is made: a build with CUDA then starts, and its Python package imports, where
// there is no CUDA. Linked in place of the library itself.
#include <cublasLt.h>
#include <dlfcn.h>

namespace {

void* Load() {
  // By its name wherever the system finds it, else where it was built.
  for (const char* path :
       {LAPIDARY_CUBLASLT_NAME, LAPIDARY_CUBLASLT_DIR "/" LAPIDARY_CUBLASLT_NAME}) {
    if (void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL)) return library;
  }
  return nullptr;
}

// Null: the library is not there, or is another one.
template <typename Function>
Function* Find(Function*, const char* name) {
  static void* const library = Load();
  return library == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(library, name));
}

}  // namespace

// FORWARD(Name, (parameters), (arguments)): the function cublasLtName, which returns a status.
#define FORWARD(name, parameters, arguments)                                           \
  cublasStatus_t cublasLt##name parameters {                                           \
    static auto* const function = Find(&cublasLt##name, "cublasLt" #name);             \
    return function == nullptr ? CUBLAS_STATUS_NOT_INITIALIZED : (*function)arguments; \
  }

extern "C" {

FORWARD(Create, (cublasLtHandle_t * handle), (handle))
FORWARD(Destroy, (cublasLtHandle_t handle), (handle))
FORWARD(MatrixLayoutCreate,
        (cublasLtMatrixLayout_t * layout, cudaDataType type, uint64_t rows, uint64_t columns,
         int64_t leading_dim),
        (layout, type, rows, columns, leading_dim))
FORWARD(MatrixLayoutSetAttribute,
        (cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute,
         const void* value, size_t num_bytes),
        (layout, attribute, value, num_bytes))
FORWARD(MatrixLayoutDestroy, (cublasLtMatrixLayout_t layout), (layout))
FORWARD(MatmulDescCreate,
        (cublasLtMatmulDesc_t * operation, cublasComputeType_t compute_type,
         cudaDataType_t scale_type),
        (operation, compute_type, scale_type))
FORWARD(MatmulDescDestroy, (cublasLtMatmulDesc_t operation), (operation))
FORWARD(MatmulDescSetAttribute,
        (cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute,
         const void* value, size_t num_bytes),
        (operation, attribute, value, num_bytes))
FORWARD(MatmulPreferenceCreate, (cublasLtMatmulPreference_t * preference), (preference))
FORWARD(MatmulPreferenceDestroy, (cublasLtMatmulPreference_t preference), (preference))
FORWARD(MatmulPreferenceSetAttribute,
        (cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
         const void* value, size_t num_bytes),
        (preference, attribute, value, num_bytes))
FORWARD(MatmulAlgoGetHeuristic,
        (cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
         cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
         cublasLtMatmulPreference_t preference, int num_wanted,
         cublasLtMatmulHeuristicResult_t results[], int* num_found),
        (handle, operation, a, b, c, d, preference, num_wanted, results, num_found))
FORWARD(MatmulAlgoCheck,
        (cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
         cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
         const cublasLtMatmulAlgo_t* algorithm, cublasLtMatmulHeuristicResult_t* result),
        (handle, operation, a, b, c, d, algorithm, result))
FORWARD(Matmul,
        (cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void* alpha, const void* a,
         cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
         const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
         cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm, void* workspace,
         size_t workspace_bytes, cudaStream_t stream),
        (handle, operation, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout,
         algorithm, workspace, workspace_bytes, stream))

size_t cublasLtGetVersion() {
  static auto* const function = Find(&cublasLtGetVersion, "cublasLtGetVersion");
  return function == nullptr ? 0 : function();
}

const char* cublasLtGetStatusString(cublasStatus_t status) {
  static auto* const function = Find(&cublasLtGetStatusString, "cublasLtGetStatusString");
  return function == nullptr ? LAPIDARY_CUBLASLT_NAME " is not there: install cuBLAS"
                             : function(status);
}

}  // extern "C"
