// libjpeg reports errors by a callback that must not return: it jumps back here. Functions that
// set the jump hold nothing that needs a destructor.
#include <setjmp.h>

// clang-format off
#include <cstdio>  // jpeglib.h needs it
#include <jpeglib.h>
#include <jerror.h>
// clang-format on

#include <algorithm>
#include <new>

#include "media/image_codecs.h"

namespace lapidary {
namespace {

constexpr unsigned kMaxMarkerBytes = 0xffff;

struct JpegError {
  jpeg_error_mgr manager;  // first: libjpeg hands out a pointer to it
  jmp_buf jump;
  int max_scans;
  char message[JMSG_LENGTH_MAX];
};

class JpegDecoder {
 public:
  explicit JpegDecoder(int max_scans) {
    info_.err = jpeg_std_error(&error_.manager);
    error_.message[0] = '\0';
    error_.manager.error_exit = [](j_common_ptr info) {
      auto* error = reinterpret_cast<JpegError*>(info->err);
      info->err->format_message(info, error->message);
      longjmp(error->jump, 1);
    };
    error_.manager.output_message = [](j_common_ptr) {};  // warnings: the image is still decoded
    error_.max_scans = max_scans;
    progress_.progress_monitor = [](j_common_ptr info) {
      auto* error = reinterpret_cast<JpegError*>(info->err);
      if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number > error->max_scans) {
        std::snprintf(error->message, sizeof(error->message), "it has more than %d scans",
                      error->max_scans);
        longjmp(error->jump, 1);
      }
    };
  }
  ~JpegDecoder() { jpeg_destroy_decompress(&info_); }
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  bool ReadHeader(std::string_view file) {
    if (setjmp(error_.jump) != 0) return false;
    jpeg_create_decompress(&info_);
    info_.progress = &progress_;
    jpeg_mem_src(&info_, reinterpret_cast<const unsigned char*>(file.data()), file.size());
    jpeg_save_markers(&info_, JPEG_APP0 + 1, kMaxMarkerBytes);
    jpeg_read_header(&info_, TRUE);
    const bool four_inks = info_.num_components == 4;
    info_.out_color_space = four_inks ? JCS_CMYK : JCS_RGB;
    return true;
  }

  // `ink_row` [4 * width] is used for images of four inks only.
  bool ReadPixels(uint8_t* rgb, uint8_t* ink_row) {
    if (setjmp(error_.jump) != 0) return false;
    jpeg_start_decompress(&info_);
    while (info_.output_scanline < info_.output_height) {
      uint8_t* target = rgb + size_t{3} * info_.output_width * info_.output_scanline;
      JSAMPROW row = has_four_inks() ? ink_row : target;
      jpeg_read_scanlines(&info_, &row, 1);
      if (has_four_inks()) InksToRgb(ink_row, target);
    }
    jpeg_finish_decompress(&info_);
    return true;
  }

  bool has_four_inks() const { return info_.out_color_space == JCS_CMYK; }
  int64_t height() const { return info_.image_height; }
  int64_t width() const { return info_.image_width; }
  // What went wrong. A lack of memory is not the file's fault.
  const char* message() const {
    if (error_.manager.msg_code == JERR_OUT_OF_MEMORY) throw std::bad_alloc();
    return error_.message;
  }

  // Between header and pixels: libjpeg forgets its markers at the end.
  Orientation orientation() const {
    for (jpeg_saved_marker_ptr marker = info_.marker_list; marker != nullptr;
         marker = marker->next) {
      const std::string_view data(reinterpret_cast<const char*>(marker->data), marker->data_length);
      if (data.starts_with("Exif")) return ReadOrientation(data);
    }
    return {};
  }

 private:
  // Adobe stores inks inverted: 255 is none.
  void InksToRgb(const uint8_t* inks, uint8_t* rgb) const {
    const int flip = info_.saw_Adobe_marker ? 255 : 0;
    for (unsigned column = 0; column < info_.output_width; ++column) {
      const int light = 255 - (inks[4 * column + 3] ^ flip);
      for (int channel = 0; channel < 3; ++channel) {
        const int product = (inks[4 * column + channel] ^ flip) * light + 128;
        const int shade = ((product >> 8) + product) >> 8;  // ink * light / 255, rounded
        rgb[3 * column + channel] = static_cast<uint8_t>(light > shade ? light - shade : 0);
      }
    }
  }

  jpeg_decompress_struct info_ = {};
  JpegError error_ = {};
  jpeg_progress_mgr progress_ = {};
};

}  // namespace

Result<ImageFacts> ReadJpegFacts(std::string_view file, const ImageLimits& limits) {
  JpegDecoder decoder(limits.max_scans);
  if (!decoder.ReadHeader(file)) {
    return MakeError("the JPEG image cannot be read: {}", decoder.message());
  }
  const int num_scans = CountJpegScans(file);
  if (num_scans > limits.max_scans) {
    return MakeError("the JPEG image cannot be decoded: it has more than {} scans",
                     limits.max_scans);
  }
  return ImageFacts{decoder.height(), decoder.width(), num_scans};
}

Result<DecodedImage> DecodeJpeg(std::string_view file, const ImageLimits& limits) {
  // A progressive file may refine its few pixels in scan after scan.
  JpegDecoder decoder(std::min(limits.max_scans, CountJpegScans(file)));
  if (!decoder.ReadHeader(file)) {
    return MakeError("the JPEG image cannot be read: {}", decoder.message());
  }
  const Orientation orientation = decoder.orientation();
  ASSIGN_OR_RETURN(Image image, AllocateImage(decoder.height(), decoder.width(), limits));
  std::vector<uint8_t> ink_row(decoder.has_four_inks() ? size_t{4} * image.width : 0);
  if (!decoder.ReadPixels(image.rgb.data(), ink_row.data())) {
    return MakeError("the JPEG image cannot be decoded: {}", decoder.message());
  }
  return DecodedImage{std::move(image), orientation};
}

}  // namespace lapidary
