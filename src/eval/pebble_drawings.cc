#include "eval/pebble_drawings.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <string_view>

#include "base/check.h"

namespace lapidary {
namespace {

constexpr double kPi = std::numbers::pi;
constexpr int kNumShapes = 6;
constexpr int kFinePerPixel = 4;  // samples a pixel and axis at the edges

struct Place {
  int radius;
  int right;
  int down;
};
constexpr std::array<Place, 6> kPlaces = {
    {{20, 0, 0}, {20, 2, -1}, {20, -2, 1}, {18, 1, 2}, {18, -1, -2}, {22, 0, 0}}};

constexpr std::array<std::array<int, 3>, kNumPebbleColors> kColors = {
    {{255, 0, 0}, {0, 255, 0}, {0, 0, 255}, {255, 255, 0}, {255, 255, 255}, {255, 0, 255}}};

constexpr int kDigitRows = 7;
constexpr int kDigitColumns = 5;
constexpr std::array<std::string_view, 10> kDigits = {
    "01110100011001110101110011000101110", "00100011000010000100001000010001110",
    "01110100010000100010001000100011111", "11111000100010000010000011000101110",
    "00010001100101010010111110001000010", "11111100001111000001000011000101110",
    "00110010001000011110100011000101110", "11111000010001000100010000100001000",
    "01110100011000101110100011000101110", "01110100011000101111000010001001100"};

bool IsInStar(double x, double y) {
  constexpr double kFifth = 2 * kPi / 5;
  double turn = std::fmod(std::atan2(x, -y), kFifth);
  if (turn < 0) turn += kFifth;
  turn = std::min(turn, kFifth - turn);  // five times the same edge, mirrored
  return std::sqrt(x * x + y * y) * (std::sin(kPi / 5 - turn) + 0.45 * std::sin(turn)) <=
         0.45 * std::sin(kPi / 5);
}

bool IsInDigit(int digit, double x, double y) {
  const auto column = static_cast<int>(std::floor(x * 3.5 + 2.5));
  const auto row = static_cast<int>(std::floor(y * 3.5 + 3.5));
  return column >= 0 && column < kDigitColumns && row >= 0 && row < kDigitRows &&
         kDigits[digit][row * kDigitColumns + column] == '1';
}

// x right, y down, both in [-1, 1].
bool IsInside(int figure, double x, double y) {
  const double far = x * x + y * y;
  switch (figure) {
    case 0:  // ball
      return far <= 1;
    case 1:  // ring
      return far <= 1 && far >= 0.36;
    case 2:  // box
      return std::max(std::abs(x), std::abs(y)) <= 0.86;
    case 3:
      return IsInStar(x, y);
    case 4:  // moon
      return far <= 1 && (x - 0.5) * (x - 0.5) + y * y >= 0.64;
    case 5:  // kite
      return std::abs(x) / 0.7 + std::abs(y) <= 1;
    default:
      return IsInDigit(figure - kNumShapes, x, y);
  }
}

// How much of a pixel of the cell the figure covers, in 255ths.
int Coverage(int mask, int pixel_row, int pixel_column) {
  if (mask == 0) return 0;
  const auto num_places = static_cast<int>(kPlaces.size());
  const int figure = (mask - 1) / num_places;
  const Place& place = kPlaces[(mask - 1) % num_places];
  const auto at = [](int fine) { return (fine + 0.5) / kFinePerPixel - kPebbleCellPixels / 2.0; };
  int num_inside = 0;
  for (int down = 0; down < kFinePerPixel; ++down) {
    const double y = (at(pixel_row * kFinePerPixel + down) - place.down) / place.radius;
    for (int right = 0; right < kFinePerPixel; ++right) {
      const double x = (at(pixel_column * kFinePerPixel + right) - place.right) / place.radius;
      num_inside += IsInside(figure, x, y);
    }
  }
  return static_cast<int>(std::nearbyint(num_inside * 255.0 / (kFinePerPixel * kFinePerPixel)));
}

}  // namespace

Image DrawPebblePicture(std::span<const PebbleCell> cells) {
  constexpr int kPixels = kPebbleSide * kPebbleCellPixels;
  Image image{kPixels, kPixels, {}};
  image.rgb.resize(size_t{3} * kPixels * kPixels);
  for (const PebbleCell& cell : cells) {
    CHECK(cell.row >= 0 && cell.row < kPebbleSide && cell.column >= 0 && cell.column < kPebbleSide);
    CHECK(cell.mask >= 0 && cell.mask < kNumPebbleMasks);
    CHECK(cell.color >= 0 && cell.color < kNumPebbleColors);
    for (int row = 0; row < kPebbleCellPixels; ++row) {
      for (int column = 0; column < kPebbleCellPixels; ++column) {
        const int coverage = Coverage(cell.mask, row, column);
        const int pixel = (cell.row * kPebbleCellPixels + row) * kPixels +
                          cell.column * kPebbleCellPixels + column;
        for (int channel = 0; channel < 3; ++channel) {
          image.rgb[3 * pixel + channel] =
              static_cast<uint8_t>(coverage * kColors[cell.color][channel] / 255);
        }
      }
    }
  }
  return image;
}

std::vector<float> PlayPebbleSound(std::span<const int> tones, int loudness) {
  constexpr int kRate = 16000;
  constexpr int kToneHz = 25;
  std::vector<float> samples;
  samples.reserve(tones.size() * kPebblePieceSamples);
  for (const int tone : tones) {
    CHECK(tone >= 0 && tone < kNumPebbleTones);
    for (int at = 0; at < kPebblePieceSamples; ++at) {
      const int turn = tone * at * kToneHz % kRate;
      const double wave = std::sin(2 * kPi * turn / kRate);
      // As a file of 16-bit samples holds it.
      samples.push_back(static_cast<float>(std::nearbyint(wave * loudness / 100 * 32767)) / 32768);
    }
  }
  return samples;
}

}  // namespace lapidary
