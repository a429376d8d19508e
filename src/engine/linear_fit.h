// A sum of a few terms fitted to what is observed, one observation at a time: least squares, with
// old observations slowly forgotten. No coefficient is below 0.
#pragma once

#include <algorithm>
#include <array>

namespace lapidary {

template <int kNumTerms>
class LinearFit {
 public:
  using Terms = std::array<double, kNumTerms>;

  LinearFit() = default;
  // A first guess, and how far each coefficient may have moved when it counts as an error of one.
  LinearFit(const Terms& guess, const Terms& spread) : coefficients_(guess), spread_(spread) {}

  const Terms& coefficients() const { return coefficients_; }

  double Value(const Terms& terms) const {
    double value = 0.0;
    for (int idx = 0; idx < kNumTerms; ++idx) value += coefficients_[idx] * terms[idx];
    return value;
  }

  // `unit`: the error that counts as one.
  void Observe(const Terms& terms, double value, double unit) {
    for (int row = 0; row < kNumTerms; ++row) {
      const double scaled = terms[row] * spread_[row] / unit;
      for (int col = 0; col < kNumTerms; ++col) {
        products_[row][col] =
            kRemembered * products_[row][col] + scaled * terms[col] * spread_[col] / unit;
      }
      moments_[row] = kRemembered * moments_[row] + scaled * value / unit;
    }
    Solve();
  }

 private:
  // An observation's weight after n more: 0.95^n, so some twenty are remembered.
  static constexpr double kRemembered = 0.95;

  // The coefficients that fit best and are not far from those before: what no observation tells
  // apart stays as it is. One that would be negative is 0, and the others fit the better without
  // it.
  void Solve() {
    std::array<bool, kNumTerms> is_zero{};
    Terms scaled = SolveOthers(is_zero);
    for (int turn = 0; turn < kNumTerms; ++turn) {
      const auto least = std::min_element(scaled.begin(), scaled.end());
      if (*least >= 0.0) break;
      is_zero[least - scaled.begin()] = true;
      scaled = SolveOthers(is_zero);
    }
    for (int idx = 0; idx < kNumTerms; ++idx) {
      coefficients_[idx] = std::max(0.0, scaled[idx] * spread_[idx]);
    }
  }

  // In units of the spread: (products + 1) * new = moments + old, for those that are not to be 0. A
  // positive definite matrix whatever was observed, so elimination needs no pivots.
  Terms SolveOthers(const std::array<bool, kNumTerms>& is_zero) const {
    std::array<Terms, kNumTerms> matrix{};
    Terms right{};
    for (int row = 0; row < kNumTerms; ++row) {
      matrix[row][row] = 1.0;
      if (is_zero[row]) continue;
      for (int col = 0; col < kNumTerms; ++col) {
        if (!is_zero[col]) matrix[row][col] += products_[row][col];
      }
      right[row] = moments_[row] + coefficients_[row] / spread_[row];
    }
    for (int pivot = 0; pivot < kNumTerms; ++pivot) {
      for (int row = pivot + 1; row < kNumTerms; ++row) {
        const double factor = matrix[row][pivot] / matrix[pivot][pivot];
        for (int col = pivot; col < kNumTerms; ++col) {
          matrix[row][col] -= factor * matrix[pivot][col];
        }
        right[row] -= factor * right[pivot];
      }
    }
    for (int row = kNumTerms - 1; row >= 0; --row) {
      for (int col = row + 1; col < kNumTerms; ++col) right[row] -= matrix[row][col] * right[col];
      right[row] /= matrix[row][row];
    }
    return right;
  }

  Terms coefficients_{};
  Terms spread_{};
  // Sums over the observations, in units of error and spread: of pairs of terms, and of terms times
  // values.
  std::array<Terms, kNumTerms> products_{};
  Terms moments_{};
};

}  // namespace lapidary
