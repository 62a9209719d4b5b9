//! Words in both languages of a page, of which it shows one.

use super::notes::Notes;
use askama::filters::HtmlSafe;
use std::fmt;

/// A text of ours in English and in Chinese.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Words(pub &'static str, pub &'static str);

impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Words(english, chinese) = self;
        write!(f, "<span lang=en>{english}</span><span lang=zh>{chinese}</span>")
    }
}

/// Both are literals of this crate, without markup.
impl HtmlSafe for Words {}

/// Returns what a phase of a run does.
pub fn phase(name: &str) -> Words {
    match name {
        "prepare" => Words("prepare the data", "准备数据"),
        "plan" => Words("plan", "规划"),
        "load" => Words("load the model", "加载模型"),
        "micro" => Words("forward and backward", "前向与反向"),
        "update" => Words("update the weights", "更新权重"),
        "evaluate" => Words("validation", "验证"),
        "sample" => Words("samples", "试听样本"),
        "hear" => Words("hear the samples", "识别试听样本"),
        "save" => Words("save a checkpoint", "保存检查点"),
        "resume" => Words("load a checkpoint", "读取检查点"),
        "export" => Words("export", "导出"),
        "results" => Words("pictures and sounds", "图片与音频"),
        _ => Words("other", "其他"),
    }
}

/// Returns what the error rate of samples is called.
pub fn errors(notes: &Notes) -> Words {
    match notes.heard.last().is_some_and(|heard| heard.by_characters) {
        true => Words("character error rate of the samples", "试听样本的字错误率"),
        false => Words("word error rate of the samples", "试听样本的词错误率"),
    }
}

/// Returns a category of memory.
pub fn category(name: &str) -> Words {
    match name {
        "parameters" => Words("parameters", "参数"),
        "gradients" => Words("gradients", "梯度"),
        "optimizer" => Words("optimizer", "优化器状态"),
        "ema" => Words("average (EMA)", "EMA"),
        "activations" => Words("activations", "激活值"),
        "workspace" => Words("workspace", "临时工作区"),
        "io" => Words("data and staging", "数据与读写缓冲"),
        "process" => Words("the process itself", "进程本身"),
        _ => Words("other", "其他"),
    }
}

/// Returns how a run ended.
pub fn state(ended: &str) -> Words {
    match ended {
        "complete" | "finished" => Words("complete", "已完成"),
        "interrupted" => Words("interrupted", "已中断"),
        _ => Words("not ended", "未结束"),
    }
}

/// Returns why a combination of options is not the plan.
pub fn verdict(name: &str) -> Words {
    match name {
        "chosen" => Words("chosen", "采用"),
        "slower" => Words("fits, slower", "放得下，但更慢"),
        "too_large" => Words("does not fit", "放不下"),
        "host_too_small" => Words("the host's memory is too small", "主机内存不足"),
        _ => Words("other", "其他"),
    }
}
