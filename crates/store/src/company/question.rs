//! What is asked of the database by one statement, however many ask it at the same time.

use std::any::{Any, TypeId};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use sqlx::postgres::PgConnection;
use tokio::sync::oneshot;

use crate::Error;

/// Something that is asked: written once, as the statement for many.
pub(crate) trait Question: Send + Sized + 'static {
    /// What each is answered with.
    type Answer: Send + 'static;
    /// Whether the answer changes anything.
    const WRITES: bool;

    /// Those of which this is the same have one statement.
    fn statement(&self) -> &str {
        ""
    }

    /// The answers, in the order of the questions. All of them have the same [`Question::statement`].
    fn answer(
        connection: &mut PgConnection,
        questions: Vec<Self>,
    ) -> impl Future<Output = Result<Vec<Self::Answer>, Error>> + Send;
}

/// Answers questions, those with the same statement together, and each in its place.
pub(crate) async fn alike<Q: Question>(
    connection: &mut PgConnection,
    questions: Vec<Q>,
) -> Result<Vec<Q::Answer>, Error> {
    let mut answers = Vec::with_capacity(questions.len());
    let mut left: Vec<(usize, Q)> = questions.into_iter().enumerate().collect();
    while let Some((_, first)) = left.first() {
        let statement = first.statement().to_owned();
        let (same, others): (Vec<_>, Vec<_>) =
            left.into_iter().partition(|(_, question)| question.statement() == statement);
        left = others;
        let (places, same): (Vec<usize>, Vec<Q>) = same.into_iter().unzip();
        answers.extend(places.into_iter().zip(Q::answer(connection, same).await?));
    }
    Ok(in_order(answers))
}

/// Questions of which several may be about the same row, though a statement changes a row once: each row's first, then each row's
/// second, and so on, with the places they had.
pub(crate) fn rounds<Q, K: PartialEq>(
    questions: Vec<Q>,
    row: impl Fn(&Q) -> K,
) -> Vec<(Vec<usize>, Vec<Q>)> {
    let mut all: Vec<(Vec<K>, Vec<usize>, Vec<Q>)> = Vec::new();
    for (place, question) in questions.into_iter().enumerate() {
        let row = row(&question);
        match all.iter_mut().find(|(rows, _, _)| !rows.contains(&row)) {
            Some((rows, places, round)) => {
                rows.push(row);
                places.push(place);
                round.push(question);
            }
            None => all.push((vec![row], vec![place], vec![question])),
        }
    }
    all.into_iter().map(|(_, places, round)| (places, round)).collect()
}

/// Answers with the places of their questions, in the order of those.
pub(crate) fn in_order<A>(mut answers: Vec<(usize, A)>) -> Vec<A> {
    answers.sort_by_key(|(place, _)| *place);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

/// A question, and to whom its answer goes.
pub(super) struct Asked<Q: Question> {
    pub(super) question: Q,
    pub(super) answer: oneshot::Sender<Q::Answer>,
}

/// The same, whatever it is about.
pub(super) trait Erased: Send {
    /// Those with the same have one statement.
    fn key(&self) -> (TypeId, &str);

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send>;

    /// Answers it, and others that have the same key.
    fn answer_with<'c>(
        self: Box<Self>,
        others: Vec<Box<dyn Erased>>,
        connection: &'c mut PgConnection,
    ) -> BoxFuture<'c, Result<(), Error>>;
}

impl<Q: Question> Erased for Asked<Q> {
    fn key(&self) -> (TypeId, &str) {
        (TypeId::of::<Q>(), self.question.statement())
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }

    fn answer_with<'c>(
        self: Box<Self>,
        others: Vec<Box<dyn Erased>>,
        connection: &'c mut PgConnection,
    ) -> BoxFuture<'c, Result<(), Error>> {
        let others = others.into_iter().filter_map(|other| other.into_any().downcast().ok());
        let all = std::iter::once(self).chain(others);
        let (questions, answers): (Vec<Q>, Vec<_>) =
            all.map(|asked| (asked.question, asked.answer)).unzip();
        async move {
            let said = Q::answer(connection, questions).await?;
            for (to, said) in answers.into_iter().zip(said) {
                // Who is gone has left, and says so.
                let _ = to.send(said);
            }
            Ok(())
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::{in_order, rounds};

    #[test]
    fn what_is_about_one_row_comes_one_after_the_other_and_keeps_its_place() {
        let all = rounds(vec!["a1", "b1", "a2", "c1", "a3", "b2"], |word| word.as_bytes()[0]);
        let said: Vec<Vec<&str>> = all.iter().map(|(_, round)| round.clone()).collect();
        assert_eq!(said, [vec!["a1", "b1", "c1"], vec!["a2", "b2"], vec!["a3"]]);
        let answers = all.into_iter().flat_map(|(places, round)| places.into_iter().zip(round));
        assert_eq!(in_order(answers.collect()), ["a1", "b1", "a2", "c1", "a3", "b2"]);
    }
}
