/* Functions of float, made by tests/cuda_math_header.py from passes/vector: do not edit.

   Straight code of arithmetic that rounds once, comparisons, choices and shifts of bits; the device and the host get the bits of native
   code and of the interpreter.  Compile without contraction of products and sums.  */
#ifndef GRAPH_OPT_MATH_H
#define GRAPH_OPT_MATH_H

GO_DEVICE float go_exp(float x)
{
  const float select = x < -104.0f ? -104.0f : x;
  const float select_1 = select > 89.0f ? 89.0f : select;
  const int bitcast = go_as_int(fmaf(select_1, 1.442695f, 1.2583166e+07f));
  const float subf = go_as_float(bitcast) - 1.2583166e+07f;
  const float fma_ = fmaf(subf, 1.9046542e-09f, fmaf(subf, -0.6931472f, select_1));
  const float fma_1 = fmaf(fmaf(fmaf(fmaf(fmaf(0.0013821302f, fma_, 0.008368668f), fma_, 0.04166826f), fma_, 0.16666521f), fma_, 0.49999994f), fma_, 1.0f);
  const int shrui = go_shr_i32(bitcast, 1);
  const float result = fmaf(fma_1, fma_, 1.0f) * go_as_float(go_shl_i32(shrui, 23)) * go_as_float(go_shl_i32(go_sub_i32(bitcast, shrui), 23));
  return result;
}

/* for x of at most 0 */
GO_DEVICE float go_exp_decaying(float x)
{
  const float select = x < -109.0f ? -109.0f : x;
  const int bitcast = go_as_int(fmaf(select, 1.442695f, 1.2583069e+07f));
  const float subf = go_as_float(bitcast) - 1.2583069e+07f;
  const float fma_ = fmaf(subf, 1.9046542e-09f, fmaf(subf, -0.6931472f, select));
  const float fma_1 = fmaf(fmaf(fmaf(fmaf(fmaf(1.2872091e-12f, fma_, 7.7939296e-12f), fma_, 3.880659e-11f), fma_, 1.5521907e-10f), fma_, 4.6566123e-10f), fma_, 9.313226e-10f);
  return fmaf(fma_1, fma_, 9.313226e-10f) * go_as_float(go_shl_i32(bitcast, 23));
}

GO_DEVICE float go_expm1(float x)
{
  const float select = x < -20.0f ? -20.0f : x;
  const float select_1 = select > 89.0f ? 89.0f : select;
  const int bitcast = go_as_int(fmaf(select_1, 1.442695f, 1.2583038e+07f));
  const float subf = go_as_float(bitcast) - 1.2583038e+07f;
  const float fma_ = fmaf(subf, 1.9046542e-09f, fmaf(subf, -0.6931472f, select_1));
  const float fma_1 = fmaf(fma_ * fma_, fmaf(fmaf(fmaf(fmaf(0.0013898184f, fma_, 0.008365969f), fma_, 0.041666854f), fma_, 0.1666655f), fma_, 0.5f), fma_);
  const float bitcast_1 = go_as_float(go_shl_i32(bitcast, 23));
  const float fma_2 = fmaf(bitcast_1, fma_1, bitcast_1 - 0.5f);
  return fabsf(x) < 2.9802322e-08f ? x : fma_2 + fma_2;
}

GO_DEVICE float go_tanh(float x)
{
  const float absf = fabsf(x);
  const float select = absf > 10.0f ? 10.0f : absf;
  const int bitcast = go_as_int(fmaf(select, 2.88539f, 1.258304e+07f));
  const float fma_ = fmaf(go_as_float(bitcast) - 1.258304e+07f, -0.3465736f, select);
  const float fma_1 = fmaf(fma_ * fma_, fmaf(fmaf(fmaf(fmaf(0.04447419f, fma_, 0.1338555f), fma_, 0.33333483f), fma_, 0.666662f), fma_, 1.0f), fma_);
  const float bitcast_1 = go_as_float(go_shl_i32(bitcast, 23));
  const float fma_2 = fmaf(bitcast_1, fma_1, fmaf(bitcast_1, 0.5f, -1.0f));
  const float mulf = select * select;
  const float select_1 = select < 0.3f ? fmaf(mulf * select, fmaf(fmaf(-0.05036461f, mulf, 0.1331481f), mulf, -0.3333306f), select) : fma_2 / (fma_2 + 2.0f);
  return copysignf(select_1, x);
}

GO_DEVICE float go_sigmoid(float x)
{
  const float select = x < -127.0f ? -127.0f : x;
  const float negf = -(select > 43.0f ? 43.0f : select);
  const int bitcast = go_as_int(fmaf(negf, 1.442695f, 1.2582975e+07f));
  const float subf = go_as_float(bitcast) - 1.2582975e+07f;
  const float fma_ = fmaf(subf, 1.9046542e-09f, fmaf(subf, -0.6931472f, negf));
  const float fma_1 = fmaf(fmaf(fmaf(fmaf(fmaf(0.0013821302f, fma_, 0.008368668f), fma_, 0.04166826f), fma_, 0.16666521f), fma_, 0.49999994f), fma_, 1.0f);
  const float result = 5.421011e-20f / fmaf(fmaf(fma_1, fma_, 1.0f), go_as_float(go_shl_i32(bitcast, 23)), 5.421011e-20f);
  return result;
}

GO_DEVICE float go_silu(float x)
{
  const float absf = fabsf(x);
  const float select = absf > 127.0f ? 127.0f : absf;
  const int bitcast = go_as_int(fmaf(select, 1.442695f, 1.2582975e+07f));
  const float subf = go_as_float(bitcast) - 1.2582975e+07f;
  const float fma_ = fmaf(subf, 1.9046542e-09f, fmaf(subf, -0.6931472f, select));
  const float fma_1 = fmaf(fmaf(fmaf(fmaf(fmaf(0.0013821302f, fma_, 0.008368668f), fma_, 0.04166826f), fma_, 0.16666521f), fma_, 0.49999994f), fma_, 1.0f);
  const float divf = select / fmaf(fmaf(fma_1, fma_, 1.0f), go_as_float(go_shl_i32(bitcast, 23)), 5.421011e-20f);
  return fmaf(divf, -5.421011e-20f, 0.0f > x ? 0.0f : x);
}

GO_DEVICE float go_erf(float x)
{
  const float absf = fabsf(x);
  const float select = absf > 3.93f ? 3.93f : absf;
  const float fma_ = fmaf(fmaf(fmaf(fmaf(fmaf(-9.389123e-06f, select, 0.00011886883f), select, -0.0006373818f), select, 0.0016756973f), select, -0.00016951491f), select, -0.01914782f);
  const float fma_1 = fmaf(fmaf(fmaf(fmaf(fma_, select, 0.102776304f), select, 0.63661957f), select, 0.12837917f), select, select);
  const int bitcast = go_as_int(fmaf(fma_1, -1.442695f, 1.2583039e+07f));
  const float fma_2 = fmaf(go_as_float(bitcast) - 1.2583039e+07f, 0.6931472f, fma_1);
  const float fma_3 = fmaf(fma_2 * fma_2, fmaf(fmaf(fmaf(fmaf(-0.0013898184f, fma_2, 0.008365969f), fma_2, -0.041666854f), fma_2, 0.1666655f), fma_2, -0.5f), fma_2);
  const float bitcast_1 = go_as_float(go_shl_i32(bitcast, 23));
  return copysignf(fmaf(bitcast_1, fma_3, 1.0f - bitcast_1), x);
}

GO_DEVICE float go_erfc(float x)
{
  const float absf = fabsf(x);
  const float select = absf > 10.25f ? 10.25f : absf;
  const float mulf = select * select;
  const float mulf_1 = mulf * -1.0f;
  const int bitcast = go_as_int(fmaf(mulf_1, 1.442695f, 1.2583079e+07f));
  const float subf = go_as_float(bitcast) - 1.2583079e+07f;
  const float fma_ = fmaf(fmaf(select, select, -mulf), -1.0f, fmaf(subf, 1.9046542e-09f, fmaf(subf, -0.6931472f, mulf_1)));
  const float fma_1 = fmaf(fma_ * fma_, fmaf(fmaf(fmaf(fmaf(0.0013821302f, fma_, 0.008368668f), fma_, 0.04166826f), fma_, 0.16666521f), fma_, 0.49999994f), fma_);
  const float fma_2 = fmaf(fmaf(fmaf(fmaf(fmaf(0.024261137f, select, 0.20294048f), select, 0.8151127f), select, 1.8979081f), select, 2.5597022f), select, 1.65625f);
  const float mulf_2 = select * 1.7724539f;
  const float fma_3 = fmaf(fmaf(select, 1.7724539f, -mulf_2), fma_2, fmaf(fmaf(fmaf(fmaf(0.021501718f, select, 0.17979798f), select, 0.7018253f), select, 1.4929532f), select, 1.65625f));
  const float divf = fma_2 / fmaf(mulf_2, fma_2, fma_3);
  const float mulf_3 = fmaf(divf, fma_1, divf) * go_as_float(go_shl_i32(bitcast, 23)) * 9.094947e-13f;
  return x < 0.0f ? 2.0f - mulf_3 : mulf_3;
}

GO_DEVICE float go_normcdf(float x)
{
  const float absf = fabsf(x);
  const float select = absf > 14.5f ? 14.5f : absf;
  const float mulf = select * select;
  const float mulf_1 = mulf * -0.5f;
  const int bitcast = go_as_int(fmaf(mulf_1, 1.442695f, 1.2583079e+07f));
  const float subf = go_as_float(bitcast) - 1.2583079e+07f;
  const float fma_ = fmaf(fmaf(select, select, -mulf), -0.5f, fmaf(subf, 1.9046542e-09f, fmaf(subf, -0.6931472f, mulf_1)));
  const float fma_1 = fmaf(fma_ * fma_, fmaf(fmaf(fmaf(fmaf(0.0013821302f, fma_, 0.008368668f), fma_, 0.04166826f), fma_, 0.16666521f), fma_, 0.49999994f), fma_);
  const float fma_2 = fmaf(fmaf(fmaf(fmaf(fmaf(0.0038898364f, select, 0.046732962f), select, 0.2679722f), select, 0.88902575f), select, 1.7068002f), select, 1.5731726f);
  const float mulf_2 = select * 2.5066283f;
  const float fma_3 = fmaf(fmaf(select, 2.5066283f, -mulf_2), fma_2, fmaf(fmaf(fmaf(fmaf(0.009751271f, select, 0.117095456f), select, 0.65325075f), select, 1.9806617f), select, 3.1463451f));
  const float divf = fma_2 / fmaf(mulf_2, fma_2, fma_3);
  const float mulf_3 = fmaf(divf, fma_1, divf) * go_as_float(go_shl_i32(bitcast, 23)) * 9.094947e-13f;
  return x < 0.0f ? mulf_3 : 1.0f - mulf_3;
}

GO_DEVICE float go_gelu(float x)
{
  const float absf = fabsf(x);
  const float select = absf > 14.4f ? 14.4f : absf;
  const float mulf = select * -0.7213475f;
  const int bitcast = go_as_int(fmaf(select, mulf, 1.2583079e+07f));
  const float fma_ = fmaf(select, fmaf(select, -0.7213475f, -mulf), fmaf(select, mulf, -(go_as_float(bitcast) - 1.2583079e+07f)));
  const float fma_1 = fmaf(fmaf(fmaf(fmaf(fmaf(0.00015328907f, fma_, 0.0013390976f), fma_, 0.0096185f), fma_, 0.055503596f), fma_, 0.24022648f), fma_, 0.6931472f);
  const float mulf_1 = select * fmaf(fmaf(fmaf(fmaf(0.006725125f, select, 0.06569187f), select, 0.29277074f), select, 0.692567f), select, 0.77612305f);
  const float divf = mulf_1 / fmaf(mulf_1, 2.506646f, fmaf(fmaf(fmaf(0.016743219f, select, 0.16676515f), select, 0.6781812f), select, 1.5522461f));
  const float mulf_2 = fmaf(divf, fma_ * fma_1, divf) * go_as_float(go_shl_i32(bitcast, 23));
  return fmaf(mulf_2, -9.094947e-13f, 0.0f > x ? 0.0f : x);
}

GO_DEVICE float go_gelu_tanh(float x)
{
  const float absf = fabsf(x);
  const float select = absf > 11.0f ? 11.0f : absf;
  const float mulf = select * select;
  const float fma_ = fmaf(mulf, 0.10294324f, 2.3017578f);
  const float fma_1 = fmaf(fmaf(select, select, -mulf), 0.10294324f, fmaf(mulf, 0.10294324f, 2.3017578f - fma_));
  const int bitcast = go_as_int(fmaf(select, fma_, 1.2582975e+07f));
  const float fma_2 = fmaf(select, fma_1 + fmaf(mulf, -2.0161983e-09f, 0.00045038565f), fmaf(select, fma_, -(go_as_float(bitcast) - 1.2582975e+07f)));
  const float fma_3 = fmaf(fmaf(fmaf(fmaf(fmaf(0.00015328907f, fma_2, 0.0013390976f), fma_2, 0.0096185f), fma_2, 0.055503596f), fma_2, 0.24022648f), fma_2, 0.6931472f);
  const float divf = select / fmaf(fmaf(fma_3, fma_2, 1.0f), go_as_float(go_shl_i32(bitcast, 23)), 5.421011e-20f);
  return fmaf(divf, -5.421011e-20f, 0.0f > x ? 0.0f : x);
}

GO_DEVICE float go_log(float x)
{
  const bool cmpf = x < 1.1754944e-38f;
  const float select = cmpf ? x * 8.388608e+06f : x;
  const int andi = go_sub_i32(go_as_int(select), 1060439283) & -8388608;
  const float subf = go_as_float(go_sub_i32(go_as_int(select), andi)) - 1.0f;
  const float fma_ = fmaf(fmaf(fmaf(fmaf(fmaf(-0.07636395f, subf, 0.12762198f), subf, -0.13159613f), subf, 0.14201581f), subf, -0.16623409f), subf, 0.20001242f);
  const float fma_1 = fmaf(subf * subf, fmaf(fmaf(fmaf(fma_, subf, -0.2500082f), subf, 0.3333333f), subf, -0.5f), subf);
  const float select_1 = x < GO_INFINITY ? fmaf((float)go_add_i32(andi, cmpf ? -192937984 : 0), 8.262958e-08f, fma_1) : x;
  return x < 0.0f ? go_as_float(0x7fc00000) : (x == 0.0f ? -GO_INFINITY : select_1);
}

GO_DEVICE float go_log1p(float x)
{
  const int andi = go_sub_i32(go_as_int(x + 1.0f), 1060439283) & -8388608;
  const float addf = go_as_float(go_sub_i32(go_as_int(x), andi)) + fmaf(go_as_float(go_sub_i32(1082130432, andi)), 0.25f, -1.0f);
  const float fma_ = fmaf(fmaf(fmaf(fmaf(fmaf(-0.07636395f, addf, 0.12762198f), addf, -0.13159613f), addf, 0.14201581f), addf, -0.16623409f), addf, 0.20001242f);
  const float fma_1 = fmaf(addf * addf, fmaf(fmaf(fmaf(fma_, addf, -0.2500082f), addf, 0.3333333f), addf, -0.5f), addf);
  const float select = x < GO_INFINITY ? copysignf(fmaf((float)andi, 8.262958e-08f, fma_1), x) : x;
  return x < -1.0f ? go_as_float(0x7fc00000) : (x == -1.0f ? -GO_INFINITY : select);
}

GO_DEVICE float go_rsqrt(float x)
{
  const bool cmpf = x < 1.0f;
  const float mulf = sqrtf(1.0f / (x * (cmpf ? 4.2949673e+09f : 2.3283064e-10f))) * (cmpf ? 65536.0f : 1.5258789e-05f);
  const float result = x > 0.0f ? mulf : (x == 0.0f ? copysignf(GO_INFINITY, x) : go_as_float(0x7fc00000));
  return result;
}

GO_DEVICE float go_powf(float x, float y)
{
  const float absf = fabsf(x);
  const bool cmpf = absf < 1.1754944e-38f;
  const float select = cmpf ? absf * 8.388608e+06f : absf;
  const int andi = go_sub_i32(go_as_int(select), 1060439283) & -8388608;
  const float bitcast = go_as_float(go_sub_i32(go_as_int(select), andi));
  const float subf = bitcast - 1.0f;
  const float addf = bitcast + 1.0f;
  const float divf = 1.0f / addf;
  const float mulf = subf * divf;
  const float fma_ = fmaf(-mulf, bitcast - (addf - 1.0f), fmaf(-mulf, addf, subf));
  const float mulf_1 = fma_ * divf;
  const float mulf_2 = mulf * mulf;
  const float fma_1 = fmaf(fmaf(fmaf(0.28172153f, mulf_2, 0.32001162f), mulf_2, 0.41220593f), mulf_2, 0.577078f);
  const float fma_2 = fmaf(mulf_2, fma_1, 0.9617967f);
  const float mulf_3 = mulf_2 * fma_2;
  const float fma_3 = fmaf(fmaf(mulf + mulf, mulf_1, fmaf(mulf, mulf, -mulf_2)), fma_2, fmaf(mulf_2, fma_2, -mulf_3));
  const float addf_1 = 2.88539f + mulf_3;
  const float addf_2 = fmaf(mulf_2, fmaf(mulf_2, fma_1, 0.9617967f - fma_2) + (-7.028462e-09f), fma_3) + 3.851926e-08f;
  const float mulf_4 = mulf * addf_1;
  const float fma_4 = fmaf(mulf, 2.88539f - addf_1 + mulf_3 + addf_2, fmaf(mulf_1, addf_1, fmaf(mulf, addf_1, -mulf_4)));
  const float mulf_5 = (float)go_add_i32(andi, cmpf ? -192937984 : 0) * 1.1920929e-07f;
  const float addf_3 = mulf_5 + mulf_4;
  const float select_1 = absf == 0.0f ? -GO_INFINITY : (absf < GO_INFINITY ? addf_3 : absf);
  const float mulf_6 = y * select_1;
  const float fma_5 = fmaf(y, mulf_5 - addf_3 + mulf_4 + fma_4, fmaf(y, select_1, -mulf_6));
  const bool cmpf_1 = select_1 == 0.0f;
  const float select_2 = cmpf_1 ? 0.0f : mulf_6;
  const float select_3 = select_2 < -200.0f ? -200.0f : select_2;
  const float select_4 = select_3 > 200.0f ? 200.0f : select_3;
  const int bitcast_1 = go_as_int(fmaf(select_4, 1.0f, 1.2583166e+07f));
  const float addf_4 = select_4 - (go_as_float(bitcast_1) - 1.2583166e+07f) + (fabsf(select_2) < 200.0f ? (cmpf_1 ? 0.0f : fma_5) : 0.0f);
  const float fma_6 = fmaf(fmaf(fmaf(fmaf(fmaf(0.00015328907f, addf_4, 0.0013390976f), addf_4, 0.0096185f), addf_4, 0.055503596f), addf_4, 0.24022648f), addf_4, 0.6931472f);
  const int shrui = go_shr_i32(bitcast_1, 1);
  const float mulf_7 = fmaf(fma_6, addf_4, 1.0f) * go_as_float(go_shl_i32(shrui, 23)) * go_as_float(go_shl_i32(go_sub_i32(bitcast_1, shrui), 23));
  const float mulf_8 = y * 0.5f;
  const bool cmpf_2 = rintf(y) == y;
  const float copysign_ = copysignf(mulf_7, cmpf_2 && rintf(mulf_8) != mulf_8 ? x : 1.0f);
  const float select_5 = cmpf_2 || x >= 0.0f || x == -GO_INFINITY ? copysign_ : go_as_float(0x7fc00000);
  return y == 0.0f ? 1.0f : select_5;
}

GO_DEVICE float go_sin(float x)
{
  const float absf = fabsf(x);
  const int bitcast = go_as_int(absf);
  const int maxsi = go_max_i32(go_sub_i32(go_shr_i32(bitcast, 23), 120), 0);
  const long long extsi = (long long)((bitcast & 8388607) | 8388608);
  const int shrui = go_shr_i32(maxsi, 5);
  const bool cmpi = shrui >= 1;
  const bool cmpi_1 = shrui >= 2;
  const bool cmpi_2 = shrui >= 3;
  const bool cmpi_3 = shrui >= 4;
  const long long extsi_1 = (long long)(maxsi & 31);
  const long long shli = go_shl_i64(cmpi_3 ? -777753015244122727LL : (cmpi_2 ? -277156292786332224LL : (cmpi_1 ? 5639655903442982865LL : (cmpi ? -6703182060581546711LL : 2734261102LL))), (int)extsi_1);
  const long long shli_1 = go_shl_i64(cmpi_3 ? -2638381946312093631LL : (cmpi_2 ? -777753015244122727LL : (cmpi_1 ? -277156292786332224LL : (cmpi ? 5639655903442982865LL : -6703182060581546711LL))), (int)extsi_1);
  const long long shli_2 = go_shl_i64(cmpi_3 ? 4342473078829310891LL : (cmpi_2 ? -2638381946312093631LL : (cmpi_1 ? -777753015244122727LL : (cmpi ? -277156292786332224LL : 5639655903442982865LL))), (int)extsi_1);
  const long long shli_3 = go_shl_i64(go_mul_i64(extsi, go_shr_i64(shli, (int)32LL)), (int)32LL);
  const long long shrui_1 = go_shr_i64(go_mul_i64(extsi, go_shr_i64(shli_2, (int)32LL)), (int)32LL);
  const long long addi = go_add_i64(go_add_i64(shli_3, go_mul_i64(extsi, go_shr_i64(shli_1, (int)32LL))), shrui_1);
  const long long shrui_2 = go_shr_i64(go_add_i64(addi, 2305843009213693952LL), (int)62LL);
  const double mulf = (double)go_sub_i64(addi, go_shl_i64(shrui_2, (int)62LL)) * 3.4061215800865545e-19;
  const bool cmpf = absf < 0.785f;
  const int select = cmpf ? 0 : (int)shrui_2;
  const float select_1 = cmpf ? absf : (float)mulf;
  const float mulf_1 = select_1 * select_1;
  const float fma_ = fmaf(mulf_1 * mulf_1, fmaf(fmaf(2.4432102e-05f, mulf_1, -0.0013887308f), mulf_1, 0.041666646f), fmaf(mulf_1, -0.5f, 1.0f));
  const float select_2 = (select & 1) == 1 ? fma_ : fmaf(mulf_1 * select_1, fmaf(fmaf(-0.00019507846f, mulf_1, 0.008332106f), mulf_1, -0.16666654f), select_1);
  const int xori = go_shl_i32(select & 2, 30) ^ (go_as_int(x) & (-2147483647 - 1));
  const float result = fabsf(x) < GO_INFINITY ? go_as_float(go_as_int(select_2) ^ xori) : go_as_float(0x7fc00000);
  return result;
}

GO_DEVICE float go_cos(float x)
{
  const float absf = fabsf(x);
  const int bitcast = go_as_int(absf);
  const int maxsi = go_max_i32(go_sub_i32(go_shr_i32(bitcast, 23), 120), 0);
  const long long extsi = (long long)((bitcast & 8388607) | 8388608);
  const int shrui = go_shr_i32(maxsi, 5);
  const bool cmpi = shrui >= 1;
  const bool cmpi_1 = shrui >= 2;
  const bool cmpi_2 = shrui >= 3;
  const bool cmpi_3 = shrui >= 4;
  const long long extsi_1 = (long long)(maxsi & 31);
  const long long shli = go_shl_i64(cmpi_3 ? -777753015244122727LL : (cmpi_2 ? -277156292786332224LL : (cmpi_1 ? 5639655903442982865LL : (cmpi ? -6703182060581546711LL : 2734261102LL))), (int)extsi_1);
  const long long shli_1 = go_shl_i64(cmpi_3 ? -2638381946312093631LL : (cmpi_2 ? -777753015244122727LL : (cmpi_1 ? -277156292786332224LL : (cmpi ? 5639655903442982865LL : -6703182060581546711LL))), (int)extsi_1);
  const long long shli_2 = go_shl_i64(cmpi_3 ? 4342473078829310891LL : (cmpi_2 ? -2638381946312093631LL : (cmpi_1 ? -777753015244122727LL : (cmpi ? -277156292786332224LL : 5639655903442982865LL))), (int)extsi_1);
  const long long shli_3 = go_shl_i64(go_mul_i64(extsi, go_shr_i64(shli, (int)32LL)), (int)32LL);
  const long long shrui_1 = go_shr_i64(go_mul_i64(extsi, go_shr_i64(shli_2, (int)32LL)), (int)32LL);
  const long long addi = go_add_i64(go_add_i64(shli_3, go_mul_i64(extsi, go_shr_i64(shli_1, (int)32LL))), shrui_1);
  const long long shrui_2 = go_shr_i64(go_add_i64(addi, 2305843009213693952LL), (int)62LL);
  const double mulf = (double)go_sub_i64(addi, go_shl_i64(shrui_2, (int)62LL)) * 3.4061215800865545e-19;
  const bool cmpf = absf < 0.785f;
  const int select = cmpf ? 0 : (int)shrui_2;
  const float select_1 = cmpf ? absf : (float)mulf;
  const float mulf_1 = select_1 * select_1;
  const float fma_ = fmaf(mulf_1 * mulf_1, fmaf(fmaf(2.4432102e-05f, mulf_1, -0.0013887308f), mulf_1, 0.041666646f), fmaf(mulf_1, -0.5f, 1.0f));
  const float select_2 = (select & 1) == 1 ? fmaf(mulf_1 * select_1, fmaf(fmaf(-0.00019507846f, mulf_1, 0.008332106f), mulf_1, -0.16666654f), select_1) : fma_;
  const int xori = go_as_int(select_2) ^ go_shl_i32(go_add_i32(select, 1) & 2, 30);
  return fabsf(x) < GO_INFINITY ? go_as_float(xori) : go_as_float(0x7fc00000);
}

GO_DEVICE float go_tan(float x)
{
  const float absf = fabsf(x);
  const int bitcast = go_as_int(absf);
  const int maxsi = go_max_i32(go_sub_i32(go_shr_i32(bitcast, 23), 120), 0);
  const long long extsi = (long long)((bitcast & 8388607) | 8388608);
  const int shrui = go_shr_i32(maxsi, 5);
  const bool cmpi = shrui >= 1;
  const bool cmpi_1 = shrui >= 2;
  const bool cmpi_2 = shrui >= 3;
  const bool cmpi_3 = shrui >= 4;
  const long long extsi_1 = (long long)(maxsi & 31);
  const long long shli = go_shl_i64(cmpi_3 ? -777753015244122727LL : (cmpi_2 ? -277156292786332224LL : (cmpi_1 ? 5639655903442982865LL : (cmpi ? -6703182060581546711LL : 2734261102LL))), (int)extsi_1);
  const long long shli_1 = go_shl_i64(cmpi_3 ? -2638381946312093631LL : (cmpi_2 ? -777753015244122727LL : (cmpi_1 ? -277156292786332224LL : (cmpi ? 5639655903442982865LL : -6703182060581546711LL))), (int)extsi_1);
  const long long shli_2 = go_shl_i64(cmpi_3 ? 4342473078829310891LL : (cmpi_2 ? -2638381946312093631LL : (cmpi_1 ? -777753015244122727LL : (cmpi ? -277156292786332224LL : 5639655903442982865LL))), (int)extsi_1);
  const long long shli_3 = go_shl_i64(go_mul_i64(extsi, go_shr_i64(shli, (int)32LL)), (int)32LL);
  const long long shrui_1 = go_shr_i64(go_mul_i64(extsi, go_shr_i64(shli_2, (int)32LL)), (int)32LL);
  const long long addi = go_add_i64(go_add_i64(shli_3, go_mul_i64(extsi, go_shr_i64(shli_1, (int)32LL))), shrui_1);
  const long long shrui_2 = go_shr_i64(go_add_i64(addi, 2305843009213693952LL), (int)62LL);
  const double mulf = (double)go_sub_i64(addi, go_shl_i64(shrui_2, (int)62LL)) * 3.4061215800865545e-19;
  const bool cmpf = absf < 0.785f;
  const int select = cmpf ? 0 : (int)shrui_2;
  const float select_1 = cmpf ? absf : (float)mulf;
  const float mulf_1 = select_1 * select_1;
  const float fma_ = fmaf(mulf_1 * select_1, fmaf(fmaf(-0.00019507846f, mulf_1, 0.008332106f), mulf_1, -0.16666654f), select_1);
  const float fma_1 = fmaf(mulf_1 * mulf_1, fmaf(fmaf(2.4432102e-05f, mulf_1, -0.0013887308f), mulf_1, 0.041666646f), fmaf(mulf_1, -0.5f, 1.0f));
  const bool cmpi_4 = (select & 1) == 1;
  const int xori = go_shl_i32(go_shl_i32(select, 1) & 2, 30) ^ (go_as_int(x) & (-2147483647 - 1));
  const int xori_1 = go_as_int((cmpi_4 ? fma_1 : fma_) / (cmpi_4 ? fma_ : fma_1)) ^ xori;
  return fabsf(x) < GO_INFINITY ? go_as_float(xori_1) : go_as_float(0x7fc00000);
}

#endif
