// libpng reports errors by a callback that must not return: it jumps back here. Functions that set
// the jump hold nothing that needs a destructor.
#include <png.h>
#include <setjmp.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>

#include "media/image_codecs.h"

namespace lapidary {
namespace {

constexpr int kMaxCachedChunks = 128;
constexpr size_t kMaxChunkBytes = size_t{8} << 20;

class PngDecoder {
 public:
  explicit PngDecoder(std::string_view file) : file_(file) {
    png_ = png_create_read_struct(
        PNG_LIBPNG_VER_STRING, this,
        [](png_structp png, png_const_charp text) {
          auto* self = static_cast<PngDecoder*>(png_get_error_ptr(png));
          std::snprintf(self->message_, sizeof(self->message_), "%s", text);
          longjmp(self->jump_, 1);
        },
        [](png_structp, png_const_charp) {});
    if (png_ != nullptr) info_ = png_create_info_struct(png_);
    if (info_ == nullptr) {
      png_destroy_read_struct(&png_, nullptr, nullptr);
      throw std::bad_alloc();
    }
    png_set_read_fn(png_, this, [](png_structp png, png_bytep out, size_t count) {
      auto* self = static_cast<PngDecoder*>(png_get_io_ptr(png));
      if (count > self->file_.size()) png_error(png, "the file ends early");
      std::memcpy(out, self->file_.data(), count);
      self->file_.remove_prefix(count);
    });
  }
  ~PngDecoder() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngDecoder(const PngDecoder&) = delete;
  PngDecoder& operator=(const PngDecoder&) = delete;

  bool ReadHeader() {
    if (setjmp(jump_) != 0) return false;
    png_set_chunk_cache_max(png_, kMaxCachedChunks);
    png_set_chunk_malloc_max(png_, kMaxChunkBytes);
    png_read_info(png_, info_);
    if (png_get_color_type(png_, info_) == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png_);
    png_set_expand_gray_1_2_4_to_8(png_);
    png_set_strip_16(png_);
    png_set_strip_alpha(png_);
    png_set_gray_to_rgb(png_);
    num_passes_ = png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    return true;
  }

  bool ReadPixels(uint8_t* rgb) {
    if (setjmp(jump_) != 0) return false;
    CHECK_EQ(png_get_rowbytes(png_, info_), size_t{3} * static_cast<size_t>(width()));
    for (int pass = 0; pass < num_passes_; ++pass) {
      for (int64_t row = 0; row < height(); ++row) {
        png_read_row(png_, rgb + 3 * width() * row, nullptr);
      }
    }
    png_read_end(png_, info_);
    return true;
  }

  bool is_interlaced() const { return png_get_interlace_type(png_, info_) != PNG_INTERLACE_NONE; }
  int64_t height() const { return png_get_image_height(png_, info_); }
  int64_t width() const { return png_get_image_width(png_, info_); }
  // What went wrong. A lack of memory is not the file's fault.
  const char* message() const {
    if (std::strstr(message_, "memory") != nullptr) throw std::bad_alloc();
    return message_;
  }

  Orientation orientation() const {
    png_uint_32 num_bytes = 0;
    png_bytep data = nullptr;
    if (png_get_eXIf_1(png_, info_, &num_bytes, &data) == 0) return {};
    return ReadOrientation({reinterpret_cast<const char*>(data), num_bytes});
  }

 private:
  std::string_view file_;  // what is left of it
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  int num_passes_ = 0;
  jmp_buf jump_;
  char message_[256] = {};
};

}  // namespace

Result<ImageFacts> ReadPngFacts(std::string_view file, const ImageLimits&) {
  PngDecoder decoder(file);
  if (!decoder.ReadHeader()) {
    return MakeError("the PNG image cannot be read: {}", decoder.message());
  }
  return ImageFacts{decoder.height(), decoder.width(), decoder.is_interlaced() ? 2 : 1};
}

Result<DecodedImage> DecodePng(std::string_view file, const ImageLimits& limits) {
  PngDecoder decoder(file);
  if (!decoder.ReadHeader()) {
    return MakeError("the PNG image cannot be read: {}", decoder.message());
  }
  ASSIGN_OR_RETURN(Image image, AllocateImage(decoder.height(), decoder.width(), limits));
  if (!decoder.ReadPixels(image.rgb.data())) {
    return MakeError("the PNG image cannot be decoded: {}", decoder.message());
  }
  return DecodedImage{std::move(image), decoder.orientation()};
}

}  // namespace lapidary
