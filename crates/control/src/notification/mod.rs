//! What people are told, wherever they are. [`tell`] hears facts and stores who is told what; [`view`] shows it, marks it read and
//! goes on after what somebody has seen; `words` is all that is ever said. Webhooks get the same, see [`webhook`](crate::webhook).

pub mod tell;
pub mod view;
pub(crate) mod words;
