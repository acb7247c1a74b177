#include "core/io/hdf5_internal.h"

namespace overtok::internal {
namespace {

std::mutex hdf5_mutex;

herr_t KeepInnermost(unsigned /*n*/, const H5E_error2_t* error, void* text) {
  if (error->desc != nullptr) *static_cast<std::string*>(text) = error->desc;
  return 0;
}

// bf16 as HDF5 describes floats: sign at bit 15, 8 bits of exponent from bit 7, 7 of mantissa.
hid_t MakeBf16() {
  const hid_t type = H5Tcopy(H5T_IEEE_F32LE);
  H5Tset_fields(type, 15, 7, 8, 0, 7);
  H5Tset_size(type, 2);
  H5Tset_ebias(type, 127);
  return type;
}

hid_t Bf16Type() {
  static const hid_t type = MakeBf16();  // under the lock; lives until the library closes
  return type;
}

}  // namespace

Hdf5Lock::Hdf5Lock() : lock_(hdf5_mutex) { H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr); }

absl::Status Hdf5Error(absl::string_view what, absl::string_view path) {
  std::string reason;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_DOWNWARD, KeepInnermost, &reason);
  H5Eclear2(H5E_DEFAULT);
  if (reason.empty()) reason = "the HDF5 library gave no reason";
  const std::string message = absl::StrCat("cannot ", what, " in ", path, ": ", reason);
  if (reason.find("No space left") != std::string::npos) {
    return absl::ResourceExhaustedError(message);
  }
  return absl::UnavailableError(message);
}

hid_t NativeType(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return H5T_NATIVE_FLOAT;
    case DType::kF64:
      return H5T_NATIVE_DOUBLE;
    case DType::kBF16:
      return Bf16Type();
    case DType::kI32:
      return H5T_NATIVE_INT32;
    case DType::kU32:
      return H5T_NATIVE_UINT32;
    case DType::kU16:
      return H5T_NATIVE_UINT16;
    case DType::kU8:
      return H5T_NATIVE_UINT8;
    case DType::kI64:
      return H5T_NATIVE_INT64;
    case DType::kU64:
      return H5T_NATIVE_UINT64;
  }
  OT_CHECK(false) << "unknown dtype " << static_cast<int>(dtype);
  return -1;
}

hid_t FileType(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return H5T_IEEE_F32LE;
    case DType::kF64:
      return H5T_IEEE_F64LE;
    case DType::kBF16:
      return Bf16Type();
    case DType::kI32:
      return H5T_STD_I32LE;
    case DType::kU32:
      return H5T_STD_U32LE;
    case DType::kU16:
      return H5T_STD_U16LE;
    case DType::kU8:
      return H5T_STD_U8LE;
    case DType::kI64:
      return H5T_STD_I64LE;
    case DType::kU64:
      return H5T_STD_U64LE;
  }
  OT_CHECK(false) << "unknown dtype " << static_cast<int>(dtype);
  return -1;
}

absl::StatusOr<DType> DTypeOfStored(hid_t type) {
  const H5T_class_t kind = H5Tget_class(type);
  const size_t size = H5Tget_size(type);
  if (kind == H5T_FLOAT && size == 4) return DType::kF32;
  if (kind == H5T_FLOAT && size == 8) return DType::kF64;
  if (kind == H5T_FLOAT && size == 2) {
    size_t sign = 0, exponent = 0, exponent_bits = 0, mantissa = 0, mantissa_bits = 0;
    H5Tget_fields(type, &sign, &exponent, &exponent_bits, &mantissa, &mantissa_bits);
    if (exponent_bits == 8 && mantissa_bits == 7) return DType::kBF16;
  }
  if (kind == H5T_INTEGER) {
    const bool is_signed = H5Tget_sign(type) == H5T_SGN_2;
    if (size == 1 && !is_signed) return DType::kU8;
    if (size == 2 && !is_signed) return DType::kU16;
    if (size == 4) return is_signed ? DType::kI32 : DType::kU32;
    if (size == 8) return is_signed ? DType::kI64 : DType::kU64;
  }
  return absl::UnimplementedError(
      absl::StrCat("an HDF5 type of class ", static_cast<int>(kind), " and ", size,
                   " bytes is none of f32, f64, bf16, u8, u16, i32, u32, i64, u64"));
}

bool IsNativeOrder(hid_t type) {
  return H5Tget_size(type) == 1 || H5Tget_order(type) == H5Tget_order(H5T_NATIVE_INT);
}

}  // namespace overtok::internal
